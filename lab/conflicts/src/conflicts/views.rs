//! The sums over several choices of tests, so that a figure can be held against others'.

use super::tally::{Pair, Tally, View};

/// The calls of COMMUTER's model that exist here (SOSP'13, 6.1), with the two that ScaleFS added
/// (SOSP'17, 7.2).
const COMMUTER: [&str; 15] = [
    "open", "create", "link", "unlink", "rename", "stat", "fstat", "lseek", "close", "read", "write",
    "pread", "pwrite", "fsync", "sync",
];

/// Tests, those with a conflict by bytes, by lines; of one pair.
type Counts = (usize, usize, usize);

fn all(p: &Pair) -> Counts {
    (p.tests, p.conflicting_bytes, p.conflicting_lines)
}

fn unstamped(p: &Pair) -> Counts {
    let s = p.stamped;
    (p.tests - s.tests, p.conflicting_bytes - s.bytes, p.conflicting_lines - s.lines)
}

/// `by_number`: each pair counts by the tests there are of it, not by those that were run.
fn view(
    name: &str,
    t: &Tally,
    pick: impl Fn(&Pair) -> bool,
    of: fn(&Pair) -> Counts,
    by_number: bool,
) -> View {
    let (mut run, mut weight, mut bytes, mut lines) = (0, 0.0, 0.0, 0.0);
    for p in t.pairs.iter().filter(|p| p.tests > 0 && pick(p)) {
        let each = if by_number { p.known as f64 / p.tests as f64 } else { 1.0 };
        let (n, b, l) = of(p);
        run += n;
        weight += n as f64 * each;
        bytes += b as f64 * each;
        lines += l as f64 * each;
    }
    let free = |n: f64| if weight == 0.0 { 100.0 } else { 100.0 * (1.0 - n / weight) };
    View { name: name.into(), tests: run, free_by_bytes: free(bytes), free_by_lines: free(lines) }
}

/// The views of a run.
pub fn of(t: &Tally) -> Vec<View> {
    let commuter = |p: &Pair| COMMUTER.contains(&&*p.a) && COMMUTER.contains(&&*p.b);
    vec![
        view("all", t, |_| true, all, false),
        view("all, but where both calls store the time of one inode", t, |_| true, unstamped, false),
        view("all, pairs weighed by the number of their tests", t, |_| true, all, true),
        view("the calls of COMMUTER and ScaleFS", t, commuter, all, false),
        view("the same, pairs weighed by the number of their tests", t, commuter, all, true),
        view("the same, but where both calls store the time of one inode", t, commuter, unstamped, true),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::tally::Stamped;
    use super::*;

    #[test]
    fn pairs_are_weighed_and_picked() {
        let pair = |a: &str, known, tests, bytes, stamped| Pair {
            a: a.into(),
            b: "stat".into(),
            known,
            tests,
            conflicting_bytes: bytes,
            conflicting_lines: bytes,
            stamped,
            ..Pair::default()
        };
        let s = Stamped { tests: 2, bytes: 2, lines: 2 };
        let pairs = vec![pair("open", 100, 10, 0, Stamped::default()), pair("chmod", 10, 10, 5, s)];
        let t = Tally { pairs, ..Tally::default() };
        let v: Vec<f64> = of(&t).iter().map(|v| v.free_by_bytes).collect();
        assert!((v[0] - 75.0).abs() < 1e-9);
        assert!((v[1] - 100.0 * (1.0 - 3.0 / 18.0)).abs() < 1e-9);
        assert!((v[2] - 100.0 * (1.0 - 5.0 / 110.0)).abs() < 1e-9);
        assert!((v[3] - 100.0).abs() < 1e-9 && of(&t)[3].tests == 10);
    }
}
