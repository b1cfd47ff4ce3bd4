//! What is known so far, in a file that a later run goes on from: lines of fields between tabs,
//! written as they come.
//!
//! ```text
//! sources   HASH                                  of which mistakes; of others the file cannot be gone on with
//! without   NUMBERS                               mistakes that do not compile
//! judge     NUMBER NAME SECONDS NUMBERS           a judge, and the mistakes it comes by
//! found     NUMBER PLACE MISTAKE JUDGE
//! open      NUMBER PLACE MISTAKE NUMBERS          nobody found it so far, among these judges
//! ```

use super::judge::Judge;
use super::plant::Mutant;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;

pub struct Ledger {
    file: File,
    pub without: Option<BTreeSet<usize>>,
    /// By name: number, seconds, the mistakes it comes by.
    judges: BTreeMap<String, (usize, f64, BTreeSet<usize>)>,
    /// Which judge found a mistake.
    pub found: BTreeMap<usize, String>,
    /// The numbers of the judges that did not.
    pub tried: BTreeMap<usize, BTreeSet<usize>>,
}

/// `1-3,7`
fn told(numbers: &BTreeSet<usize>) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut all = numbers.iter().copied().peekable();
    while let Some(from) = all.next() {
        let mut to = from;
        while all.next_if_eq(&(to + 1)).is_some() {
            to += 1;
        }
        out.push(if from == to { from.to_string() } else { format!("{from}-{to}") });
    }
    out.join(",")
}

fn read(text: &str) -> Option<BTreeSet<usize>> {
    let mut out = BTreeSet::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        out.extend(from.parse::<usize>().ok()?..=to.parse().ok()?);
    }
    Some(out)
}

/// What the mistakes are, but not in which lines.
fn hash_of(mutants: &[Mutant]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325_u64;
    for m in mutants {
        for b in format!("{} {} {}\n", m.id, m.file, m.what).bytes() {
            h = (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
        }
    }
    h
}

impl Ledger {
    /// Opens or begins it; `all`: every mistake, whether it compiles or not.
    pub fn open(path: &Path, all: &[Mutant]) -> Result<Ledger, String> {
        let error = |e: std::io::Error| format!("{}: {e}", path.display());
        let text = match std::fs::read_to_string(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            r => r.map_err(error)?,
        };
        let file = File::options().append(true).create(true).open(path).map_err(error)?;
        let hash = format!("{:016x}", hash_of(all));
        let (without, judges) = (None, BTreeMap::new());
        let mut l = Ledger { file, without, judges, found: BTreeMap::new(), tried: BTreeMap::new() };
        if text.is_empty() {
            l.say(&["sources", &hash])?;
        }
        for (n, line) in text.lines().enumerate() {
            let f: Vec<&str> = line.split('\t').collect();
            l.take(&f, &hash).ok_or(format!("{}:{}: {line:.60}", path.display(), n + 1))??;
        }
        Ok(l)
    }

    fn take(&mut self, fields: &[&str], hash: &str) -> Option<Result<(), String>> {
        match *fields {
            ["sources", h] if h == hash => {}
            ["sources", _] => {
                return Some(Err("these mistakes are of other sources; name another --out".into()));
            }
            ["without", ids] => self.without = Some(read(ids)?),
            ["judge", n, name, seconds, ids] => {
                self.judges.insert(name.into(), (n.parse().ok()?, seconds.parse().ok()?, read(ids)?));
            }
            ["found", id, _, _, by] => {
                self.found.insert(id.parse().ok()?, by.into());
            }
            ["open", id, _, _, judges] => {
                self.tried.insert(id.parse().ok()?, read(judges)?);
            }
            _ => return None,
        }
        Some(Ok(()))
    }

    fn say(&mut self, fields: &[&str]) -> Result<(), String> {
        let line = fields.join("\t") + "\n";
        self.file.write_all(line.as_bytes()).map_err(|e| e.to_string())
    }

    /// Notes what does not compile.
    pub fn leave_out(&mut self, ids: &BTreeSet<usize>) -> Result<(), String> {
        self.without = Some(ids.clone());
        self.say(&["without", &told(ids)])
    }

    /// The judge's number. Unless it is known from an earlier run, it runs once without a mistake;
    /// `None` if it fails or takes longer than `longest` seconds of a processor.
    pub fn number(&mut self, judge: &mut Judge, at: &Path, longest: u64) -> Result<Option<usize>, String> {
        if let Some((n, seconds, reached)) = self.judges.get(&judge.name) {
            (judge.seconds, judge.reached) = (*seconds, reached.clone());
            return Ok(Some(*n));
        }
        if !judge.first_run(at, longest)? {
            return Ok(None);
        }
        let n = self.judges.len();
        let seconds = format!("{:.3}", judge.seconds);
        self.say(&["judge", &n.to_string(), &judge.name, &seconds, &told(&judge.reached)])?;
        self.judges.insert(judge.name.clone(), (n, judge.seconds, judge.reached.clone()));
        Ok(Some(n))
    }

    /// Notes that `by` found the mistake.
    pub fn finds(&mut self, m: &Mutant, by: &str) -> Result<(), String> {
        self.found.insert(m.id, by.into());
        self.say(&["found", &m.id.to_string(), &m.place(), &m.what, by])
    }

    /// Notes that these judges did not find it.
    pub fn leaves_open(&mut self, m: &Mutant, tried: &BTreeSet<usize>) -> Result<(), String> {
        self.tried.insert(m.id, tried.clone());
        self.say(&["open", &m.id.to_string(), &m.place(), &m.what, &told(tried)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(id: usize, what: &str) -> Mutant {
        Mutant { id, file: "a.rs".into(), line: 7, what: what.into() }
    }

    #[test]
    fn numbers_are_told_and_read() {
        for set in [vec![], vec![4], vec![1, 2, 3, 7, 9, 10]] {
            let set: BTreeSet<usize> = set.into_iter().collect();
            assert_eq!(read(&told(&set)), Some(set));
        }
        assert_eq!(told(&(3..=9).collect()), "3-9");
        assert_eq!(read("1-x"), None);
    }

    #[test]
    fn a_later_run_knows_what_the_earlier_one_found() {
        let path = std::env::temp_dir().join(format!("lanefs-ledger-{}", std::process::id()));
        let all = [mutant(1, "x"), mutant(2, "y")];
        let mut l = Ledger::open(&path, &all).unwrap();
        l.leave_out(&[5].into()).unwrap();
        l.leaves_open(&all[0], &[1, 2].into()).unwrap();
        l.finds(&all[1], "somebody").unwrap();
        l.leaves_open(&all[0], &[1, 2, 4].into()).unwrap();
        let l = Ledger::open(&path, &all).unwrap();
        assert_eq!((l.without, l.tried), (Some([5].into()), [(1, [1, 2, 4].into())].into()));
        assert_eq!(l.found, [(2, "somebody".into())].into());
        let other = Ledger::open(&path, &all[..1]).err().unwrap();
        assert!(other.contains("other sources"), "{other}");
        std::fs::remove_file(&path).unwrap();
    }
}
