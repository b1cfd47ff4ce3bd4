//! The cross-check: the same run of a test, seen by the instrumentation and by valgrind's lackey,
//! which sees every access of every instruction, also those inside the C library and the compiled
//! parts of the Rust library.
//!
//! 1. The parent picks the tests and hands each to a child of this very program, which runs under
//!    `valgrind --tool=lackey --trace-mem=yes`. The child runs the test once, in one order, warm,
//!    and says which lines its own recorder found shared.
//! 2. lackey writes each access as a line of text, from the first instruction to the last: millions
//!    of them. While the child sets up and clears away, the pipe they go into is full and does not
//!    block, so that a line is lost at the cost of a system call. Before the two calls the child
//!    says that it is ready and waits until the pipe blocks and is read; from there on each line
//!    comes, and nothing is kept but what lies between the marks of the two recorded calls. A mark
//!    is a pattern of one-byte stores that the runtime makes when it begins and ends to record.
//!    valgrind runs one thread at a time, and while a call is recorded all others wait for it, so
//!    whatever lies between two marks is that call's.
//! 3. Both see the same addresses, so the lines can be compared one by one. What lackey alone sees
//!    is told with the place of its instruction.

use super::call::Call;
use super::enumerate;
use super::overlap::{self, LINE, LineMap};
use super::run::Rig;
use super::symbol::{Symbols, is_ours};
use super::tally::Ratchet;
use super::test_case::{Names, Test};
use super::trace::{Access, WRITE};
use lanefs_lab_model::harness::Output;
use lanefs_lab_model::op::Op;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The offsets of the bytes of a mark, in the order in which they are stored (`MARK` in
/// trace/runtime.c).
const BEGIN: [u64; 8] = [0, 3, 4, 8, 9, 14, 23, 25];
const END: [u64; 8] = [0, 31, 4, 15, 9, 26, 53, 58];
/// Tests of a pair that are looked at for one with a conflict.
const LOOK: usize = 500;

/// The test that the child is told to run.
#[derive(Serialize, Deserialize)]
struct Task {
    names: Vec<String>,
    setup: Vec<(usize, Vec<Op>)>,
    ops: [Op; 2],
}

/// The answer of the child.
#[derive(Default, Serialize, Deserialize)]
struct Answer {
    /// Shared lines by their first address, and whether bytes are shared.
    shared: Vec<(usize, bool)>,
    /// Accesses recorded.
    recorded: usize,
    /// The address of [`child`], and everything else that is mapped and executable: first address,
    /// last, name.
    here: usize,
    maps: Vec<(u64, u64, String)>,
}

/// The line that the child writes before the calls.
const READY: &str = "ready\n";

/// Tells the parent that the calls come next, and waits until it reads the trace.
fn ready() -> Result<(), String> {
    let (mut out, mut answer) = (std::io::stdout(), String::new());
    out.write_all(READY.as_bytes()).and_then(|()| out.flush()).map_err(|e| e.to_string())?;
    match std::io::stdin().read_line(&mut answer) {
        Ok(n) if n > 0 => Ok(()),
        Ok(_) => Err("nobody reads the trace".into()),
        Err(e) => Err(e.to_string()),
    }
}

/// Runs the test that a line of standard input names; for [`check`].
pub fn child() -> Result<(), String> {
    let mut text = String::new();
    std::io::stdin().read_line(&mut text).map_err(|e| e.to_string())?;
    let task: Task = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let mut rig = Rig::small(Names(task.names))?;
    rig.before_calls = Some(ready);
    let test = Test { calls: (Call::Stat, Call::Stat), number: 0, setup: task.setup, ops: task.ops };
    let order = rig.run(&test, 0, true, false)?;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let answer = Answer {
        shared: order.shared.lines.iter().map(|l| (l.0 * LINE, l.1)).collect(),
        recorded: order.recordings.iter().map(|r| r.accesses.len()).sum(),
        here: child as *const () as usize,
        maps: maps.lines().filter_map(mapping).collect(),
    };
    println!("{}", serde_json::to_string(&answer).map_err(|e| e.to_string())?);
    Ok(())
}

/// An executable mapping of a file, as /proc/self/maps says it.
fn mapping(line: &str) -> Option<(u64, u64, String)> {
    let mut f = line.split_whitespace();
    let (range, rights) = (f.next()?, f.next()?);
    let name = f.nth(3).filter(|n| rights.contains('x') && n.starts_with('/'))?;
    let (from, to) = range.split_once('-')?;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?, name.into()))
}

/// One of the last stores of one byte, against a pattern.
fn is_mark(last: &[u64; 8], at: usize, pattern: &[u64; 8]) -> bool {
    let first = last[at % 8];
    (0..8).all(|i| last[(at + i) % 8] == first.wrapping_add(pattern[i]))
}

/// Reads a trace and keeps the accesses between marks, window by window, each with the address of
/// its instruction.
#[derive(Default)]
struct Reader {
    windows: Vec<Vec<Access>>,
    open: bool,
    pc: u64,
    last: [u64; 8],
    at: usize,
    /// Lines of text.
    lines: u64,
    /// The line on which the marks lie.
    marks: u64,
}

impl Reader {
    /// Both calls were seen.
    fn is_done(&self) -> bool {
        self.windows.len() == 2 && !self.open
    }

    /// Takes one line: `I  addr,size`, ` L addr,size`, ` S ..`, ` M ..`; anything else is
    /// valgrind's own.
    fn take(&mut self, line: &[u8]) {
        self.lines += 1;
        let Some((&[a, kind, b], rest)) = line.split_first_chunk::<3>() else { return };
        let is_data = a == b' ' && b == b' ' && matches!(kind, b'L' | b'S' | b'M');
        let is_code = a == b'I' && kind == b' ' && self.open;
        if !is_code && !(is_data && (self.open || kind == b'S')) {
            return;
        }
        let Some((addr, size)) = numbers(rest) else { return };
        if is_code {
            self.pc = addr;
            return;
        }
        if kind == b'S' && size == 1 {
            self.last[self.at % 8] = addr;
            self.at += 1;
            if is_mark(&self.last, self.at, &BEGIN) {
                self.open = true;
                self.windows.push(Vec::new());
                self.marks = self.last[self.at % 8];
                return;
            }
            if self.open && is_mark(&self.last, self.at, &END) {
                self.open = false;
            }
        }
        if self.open
            && let Some(w) = self.windows.last_mut()
        {
            let kind = if kind == b'L' { 0 } else { WRITE };
            w.push(Access::seen(addr as usize, self.pc as usize, size as u32, kind));
        }
    }
}

/// `hex,decimal`, perhaps behind blanks.
fn numbers(s: &[u8]) -> Option<(u64, u64)> {
    let s = s.trim_ascii();
    let comma = s.iter().position(|b| *b == b',')?;
    let hex = |n: u64, b: &u8| Some(n << 4 | u64::from((*b as char).to_digit(16)?));
    let dec = |n: u64, b: &u8| Some(n * 10 + u64::from((*b as char).to_digit(10)?));
    Some((s[..comma].iter().try_fold(0, hex)?, s[comma + 1..].iter().try_fold(0, dec)?))
}

/// Lines that two windows share with a write, and whether bytes are; the accesses of each.
fn shared(a: &[Access], b: &[Access]) -> BTreeMap<usize, (bool, Vec<Access>)> {
    let mut lines: LineMap<[[u64; 2]; 2]> = LineMap::default();
    for (who, w) in [a, b].into_iter().enumerate() {
        for (line, mask, x) in w.iter().flat_map(|x| overlap::parts(x).map(move |(l, m)| (l, m, x))) {
            lines.entry(line).or_default()[who][usize::from(x.kind & WRITE)] |= mask;
        }
    }
    let mut out = BTreeMap::new();
    for (line, [x, y]) in lines {
        let touched = |m: [u64; 2]| m[0] | m[1];
        if x[1] != 0 && touched(y) != 0 || y[1] != 0 && touched(x) != 0 {
            let bytes = x[1] & touched(y) != 0 || y[1] & touched(x) != 0;
            out.insert(line, (bytes, Vec::new()));
        }
    }
    for x in a.iter().chain(b) {
        for (line, _) in overlap::parts(x) {
            if let Some(e) = out.get_mut(&line) {
                e.1.push(*x);
            }
        }
    }
    out
}

/// The result of one test.
#[derive(Debug, Serialize)]
pub struct Compared {
    /// The arguments that run it again by itself.
    pub test: String,
    /// Accesses that the recorder saw.
    pub recorded: usize,
    /// Accesses that lackey saw.
    pub traced: usize,
    /// Lines of text that were read: those between the set-up and the end of the second call.
    pub lines_of_trace: u64,
    /// Shared lines that both found.
    pub both: usize,
    /// Shared lines that the recorder alone found.
    pub recorder_alone: usize,
    /// Shared lines that lackey alone found: the places where the accesses were made.
    pub lackey_alone: Vec<Vec<String>>,
    /// Seconds.
    pub seconds: f64,
}

/// Runs `n` tests both ways and prints how they compare; false if one sees a line shared that the
/// other does not, but for accesses inside the C library, which the recorder cannot see.
pub fn check(n: usize, ratchet: &Ratchet, output: &Output) -> Result<bool, String> {
    let rig = Rig::new()?;
    let all: Vec<(Call, Call)> = Call::pairs().filter(|p| p.1 != Call::Checkpoint).collect();
    let is_known = |p: &(Call, Call)| ratchet.pairs.contains_key(&format!("{},{}", p.0.name(), p.1.name()));
    let (known, free): (Vec<_>, Vec<_>) = all.into_iter().partition(is_known);
    let spread = |v: &[(Call, Call)], k: usize| -> Vec<(Call, Call)> {
        (0..k.min(v.len())).map(|i| v[i * v.len() / k]).collect()
    };
    let mut pairs = spread(&known, n / 2);
    pairs.extend(spread(&free, n - pairs.len()));
    let (mut done, mut agree) = (Vec::new(), true);
    for calls in pairs {
        let mut tests = enumerate::tests(calls, &rig.names)?.tests;
        tests.truncate(LOOK);
        // One with a conflict, if there is one among the first, and not one that comes now and
        // then.
        let conflicts = |t: &Test| {
            (0..3).all(|at| rig.run_elsewhere(t, 0, true, false, at).is_ok_and(|o| o.shared.by_lines()))
        };
        let at = tests.iter().position(conflicts).unwrap_or(0);
        if at < tests.len() {
            let c = compare(&rig, &tests.swap_remove(at))?;
            println!(
                "{}: {} accesses recorded, {} traced ({} lines of text, {:.0} s); shared lines: {} by both, {} by the recorder alone, {} \
                 by lackey alone",
                c.test,
                c.recorded,
                c.traced,
                c.lines_of_trace,
                c.seconds,
                c.both,
                c.recorder_alone,
                c.lackey_alone.len()
            );
            for at in &c.lackey_alone {
                println!("    {}", at.join("; "));
            }
            let of_ours = |at: &Vec<String>| at.iter().any(|s| is_ours(s));
            agree &= c.recorder_alone == 0 && !c.lackey_alone.iter().any(of_ours);
            done.push(c);
        }
    }
    output.write_file(&done)?;
    Ok(agree)
}

/// The pipe that lackey writes to.
struct Trace {
    from: PipeReader,
    to: PipeWriter,
    buffer: Vec<u8>,
}

impl Trace {
    /// One that does not block.
    fn new() -> std::io::Result<Trace> {
        let (from, to) = std::io::pipe()?;
        // The child's end is inherited; the program behind valgrind does not know of it.
        rustix::io::fcntl_setfd(&to, rustix::io::FdFlags::empty())?;
        rustix::fs::fcntl_setfl(&from, OFlags::NONBLOCK)?;
        let t = Trace { from, to, buffer: vec![0; 1 << 20] };
        t.block(false)?;
        Ok(t)
    }

    /// Sets whether a writer waits while the pipe is full (`on`) or loses what it writes. A line is
    /// shorter than what a pipe takes whole or not at all.
    fn block(&self, on: bool) -> std::io::Result<()> {
        Ok(rustix::fs::fcntl_setfl(&self.to, if on { OFlags::empty() } else { OFlags::NONBLOCK })?)
    }

    /// Reads what the pipe holds now; returns nothing if it is empty.
    fn read(&mut self) -> std::io::Result<&[u8]> {
        match self.from.read(&mut self.buffer) {
            Ok(n) => Ok(&self.buffer[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(&[]),
            Err(e) => Err(e),
        }
    }

    fn drain(&mut self) -> std::io::Result<()> {
        while !self.read()?.is_empty() {}
        Ok(())
    }

    /// Reads until the second call is over, or the child.
    fn follow(&mut self, c: &mut Child) -> std::io::Result<Reader> {
        let (mut reader, mut rest) = (Reader::default(), Vec::new());
        while !reader.is_done() {
            let text = self.read()?;
            if text.is_empty() {
                if c.try_wait()?.is_some() {
                    break;
                }
                // Not woken for each line, whose writer needs the processor.
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            rest.extend_from_slice(text);
            let end = rest.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
            rest[..end].split_inclusive(|b| *b == b'\n').for_each(|l| reader.take(l));
            rest.drain(..end);
        }
        self.block(false)?;
        self.drain()?;
        Ok(reader)
    }
}

/// The child's last words and the trace of its two calls.
fn run_child(task: &Task) -> std::io::Result<(String, Reader)> {
    let lost = |what: &str| std::io::Error::other(what.to_string());
    let mut trace = Trace::new()?;
    let mut c = Command::new("valgrind");
    c.args(["--tool=lackey", "--basic-counts=no", "--trace-mem=yes", "--fair-sched=yes"]);
    c.arg(format!("--log-fd={}", trace.to.as_raw_fd()))
        .arg(std::env::current_exe()?)
        .args(["conflicts", "--lackey-child"]);
    let mut c = c.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (to, from) = (c.stdin.take(), c.stdout.take());
    let (mut to, from) = to.zip(from).ok_or_else(|| lost("the child has no pipes"))?;
    to.write_all(serde_json::to_string(task)?.as_bytes()).and_then(|()| to.write_all(b"\n"))?;
    let (mut from, mut text) = (BufReader::new(from), String::new());
    from.read_line(&mut text)?;
    if text != READY {
        return Err(lost(&format!("the program did not get to the calls: {}, {text:?}", c.wait()?)));
    }
    trace.drain()?;
    trace.block(true)?;
    to.write_all(b"go\n")?;
    let reader = trace.follow(&mut c)?;
    text.clear();
    from.read_to_string(&mut text)?;
    match c.wait()? {
        s if s.success() => Ok((text, reader)),
        s => Err(lost(&format!("the program ended with {s}"))),
    }
}

fn compare(rig: &Rig, t: &Test) -> Result<Compared, String> {
    let begin = std::time::Instant::now();
    let task = Task { names: rig.names.0.clone(), setup: t.setup.clone(), ops: t.ops.clone() };
    let (text, reader) = run_child(&task).map_err(|e| format!("under valgrind: {e}"))?;
    let answer: Answer = serde_json::from_str(&text).map_err(|e| format!("its answer: {e}"))?;
    let [a, b] = &reader.windows[..] else {
        return Err(format!("{} recorded calls in the trace, not two", reader.windows.len()));
    };
    let mut seen = shared(a, b);
    seen.remove(&(reader.marks as usize / LINE));
    let recorded: BTreeSet<usize> = answer.shared.iter().map(|l| l.0 / LINE).collect();
    let mut symbols = Symbols::default();
    let alone = seen.iter().filter(|s| !recorded.contains(s.0));
    let lackey_alone = alone.map(|(_, s)| places(&s.1, &answer, &mut symbols)).collect();
    Ok(Compared {
        test: format!("--pair {},{} --test {}", t.calls.0.name(), t.calls.1.name(), t.number),
        recorded: answer.recorded,
        traced: a.len() + b.len(),
        lines_of_trace: reader.lines,
        both: seen.keys().filter(|l| recorded.contains(l)).count(),
        recorder_alone: recorded.iter().filter(|l| !seen.contains_key(l)).count(),
        lackey_alone,
        seconds: begin.elapsed().as_secs_f64(),
    })
}

/// Returns the places where accesses were made, each once: a line of LaneFS, or the library.
fn places(accesses: &[Access], answer: &Answer, symbols: &mut Symbols) -> Vec<String> {
    let here = child as *const () as usize;
    let mut out = BTreeSet::new();
    for a in accesses {
        let how = if a.kind & WRITE != 0 { "writes" } else { "reads" };
        let of = |m: &&(u64, u64, String)| (m.0..m.1).contains(&(a.pc as u64));
        let program = answer.maps.iter().find(|m| (m.0..m.1).contains(&(answer.here as u64)));
        match answer.maps.iter().find(of) {
            Some(m) if program.is_none_or(|p| p.2 != m.2) => {
                out.insert(format!("{how} in {}", m.2.rsplit('/').next().unwrap_or(&m.2)));
            }
            _ => {
                // The program is the same, at another place.
                let pc = a.pc.wrapping_sub(answer.here).wrapping_add(here) + 1;
                let site = symbols.site(&Access::seen(a.addr, pc, a.size, a.kind));
                out.insert(format!("{} {how} ({})", site.function, site.place));
            }
        }
    }
    out.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(r: &mut Reader, lines: &[String]) {
        lines.iter().for_each(|l| r.take(l.as_bytes()));
    }

    fn mark(pattern: [u64; 8]) -> Vec<String> {
        pattern.iter().map(|o| format!(" S {:08x},1\n", 0x40_0000 + o)).collect()
    }

    #[test]
    fn what_lies_between_marks_is_kept_and_compared_by_line() {
        let mut r = Reader::default();
        let access = |s: &str| vec!["I  00401000,4\n".to_string(), format!(" {s}\n")];
        for (before, inside) in
            [("S 1000,8", ["S 2000,8", "L 3000,4"]), ("M 2000,8", ["L 2004,4", "M 4000,8"])]
        {
            trace(&mut r, &access(before));
            assert!(!r.is_done());
            trace(&mut r, &mark(BEGIN));
            assert!(!r.is_done());
            inside.iter().for_each(|s| trace(&mut r, &access(s)));
            trace(&mut r, &["==12== valgrind's own\n".to_string()]);
            trace(&mut r, &mark(END));
        }
        assert!(r.is_done());
        let mut s = shared(&r.windows[0], &r.windows[1]);
        assert!(s.remove(&(r.marks as usize / LINE)).is_some(), "the marks' own line");
        assert_eq!(s.keys().copied().collect::<Vec<_>>(), [0x2000 / LINE]);
        let found = &s[&(0x2000 / LINE)];
        assert!(found.0 && found.1.len() == 2 && found.1.iter().all(|a| a.pc == 0x40_1000));
        // The same line only.
        let far = shared(&[Access::seen(0x2000, 1, 4, WRITE)], &[Access::seen(0x2020, 1, 4, 0)]);
        assert!(!far[&(0x2000 / LINE)].0);
        // Two readers share nothing that counts.
        assert!(shared(&[Access::seen(0x2000, 1, 4, 0)], &[Access::seen(0x2000, 1, 4, 0)]).is_empty());
    }

    #[test]
    fn before_the_calls_lines_are_lost_and_from_then_on_none() {
        let mut t = Trace::new().unwrap();
        let full = (0..100_000).find_map(|_| t.to.write_all(b" S 1000,1\n").err()).unwrap();
        assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
        t.drain().unwrap();
        t.block(true).unwrap();
        let mut to = t.to.try_clone().unwrap();
        let write = std::thread::spawn(move || {
            for _ in 0..2 {
                mark(BEGIN).iter().for_each(|l| to.write_all(l.as_bytes()).unwrap());
                // More than a pipe holds.
                (0..20_000)
                    .for_each(|n| to.write_all(format!(" L {:x},8\n", 0x1000 + n * 8).as_bytes()).unwrap());
                mark(END).iter().for_each(|l| to.write_all(l.as_bytes()).unwrap());
            }
        });
        let mut c = Command::new("sleep").arg("60").spawn().unwrap();
        let r = t.follow(&mut c).unwrap();
        write.join().unwrap();
        assert!(r.is_done());
        let reads = |w: &Vec<Access>| w.iter().filter(|a| a.kind & WRITE == 0).count();
        assert_eq!(r.windows.iter().map(reads).collect::<Vec<_>>(), [20_000; 2]);
        // A child that ends before its calls does not leave the reader waiting.
        c.kill().unwrap();
        c.wait().unwrap();
        assert!(!t.follow(&mut c).unwrap().is_done());
    }
}
