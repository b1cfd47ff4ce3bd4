//! The lines that a child tells its parent, by write(2) from the stack: a line must be told when
//! there is no memory, by any thread, and be there when the process ends at the next instruction.

use std::fmt;
use std::io::Write;

/// A line that a child tells. It names threads and steps by number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line {
    /// A step is called.
    Called(usize, usize),
    /// It was answered: 0, or an errno where it should have succeeded.
    Answered(usize, usize, i32),
    /// The step that was answered by an errno changed nothing; the script goes on.
    Unchanged(usize, usize),
    /// Nobody knows what that step did. `sync` was called behind it, and answered so; the script
    /// ends.
    Doubted(usize, usize, i32),
    /// An inode of the thread's model is this inode of the volume.
    Is(usize, u64, u64, u32),
    /// Opening, making, checking, repairing or closing was answered: 0, or an errno.
    Whole(i32),
    /// A thread panics, and says so.
    Panics(String),
    /// The run is over: allocations, starts of threads, and how many of both failed.
    Over(u64, u64, u64),
    /// A promise was broken.
    Broken(String),
}

/// Tells. The first call of a process allocates. A parent that is gone is no reason to go on
/// otherwise.
pub fn tell(what: fmt::Arguments<'_>) {
    let mut room = [0u8; 1024];
    let mut rest = &mut room[..];
    let _ = rest.write_fmt(what);
    let _ = rest.write_all(b"\n");
    let left = rest.len();
    let used = room.len() - left;
    let mut line = &mut room[..used];
    // Longer than there was room: what is there is cut.
    if let Some(last) = line.last_mut() {
        *last = b'\n';
    }
    let end = line.len().saturating_sub(1);
    line[..end].iter_mut().filter(|b| **b == b'\n').for_each(|b| *b = b' ');
    while !line.is_empty() {
        match rustix::io::write(std::io::stdout(), line) {
            Ok(n) => line = &mut line[n..],
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

impl Line {
    /// Tells this.
    pub fn tell(&self) {
        match self {
            Line::Called(t, i) => tell(format_args!("called {t} {i}")),
            Line::Answered(t, i, e) => tell(format_args!("answered {t} {i} {e}")),
            Line::Unchanged(t, i) => tell(format_args!("unchanged {t} {i}")),
            Line::Doubted(t, i, e) => tell(format_args!("doubted {t} {i} {e}")),
            Line::Is(t, id, ino, generation) => tell(format_args!("is {t} {id} {ino} {generation}")),
            Line::Whole(e) => tell(format_args!("whole {e}")),
            Line::Panics(what) => tell(format_args!("panics {what}")),
            Line::Over(a, t, f) => tell(format_args!("over {a} {t} {f}")),
            Line::Broken(what) => tell(format_args!("broken {what}")),
        }
    }

    /// Reads one.
    pub fn read(line: &str) -> Option<Line> {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut words = rest.split(' ');
        let mut next = || words.next();
        fn number<T: std::str::FromStr>(word: Option<&str>) -> Option<T> {
            word?.parse().ok()
        }
        Some(match what {
            "called" => Line::Called(number(next())?, number(next())?),
            "answered" => Line::Answered(number(next())?, number(next())?, number(next())?),
            "unchanged" => Line::Unchanged(number(next())?, number(next())?),
            "doubted" => Line::Doubted(number(next())?, number(next())?, number(next())?),
            "is" => Line::Is(number(next())?, number(next())?, number(next())?, number(next())?),
            "whole" => Line::Whole(number(next())?),
            "panics" => Line::Panics(rest.into()),
            "over" => Line::Over(number(next())?, number(next())?, number(next())?),
            "broken" => Line::Broken(rest.into()),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_told_in_full_is_not_read() {
        assert_eq!(Line::read("called 1 12"), Some(Line::Called(1, 12)));
        assert_eq!(Line::read("is 0 7 9 3"), Some(Line::Is(0, 7, 9, 3)));
        assert_eq!(Line::read("broken F2: so it is"), Some(Line::Broken("F2: so it is".into())));
        for part in ["", "call", "called 1", "answered 1 2", "over 1 2 "] {
            assert_eq!(Line::read(part), None, "{part}");
        }
    }
}
