//! Which judge sees which mistake, and when: what is cheap and finds much comes first, and no
//! mistake takes long before every other had its turn.

use super::judge::Judge;
use super::ledger::Ledger;
use super::plant::Mutant;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Seconds of judges, as they take them without a mistake, that a mistake gets in each round.
const ROUNDS: [f64; 4] = [6.0, 24.0, 96.0, f64::INFINITY];

/// How often a judge was asked about mistakes of one file, and of all, and found them.
#[derive(Default)]
struct Merits {
    all: BTreeMap<usize, (f64, f64)>,
    file: BTreeMap<(usize, String), (f64, f64)>,
}

impl Merits {
    fn note(&mut self, judge: usize, file: &str, found: bool) {
        for m in [self.all.entry(judge).or_default(), self.file.entry((judge, file.into())).or_default()] {
            m.0 += 1.0;
            m.1 += f64::from(u8::from(found));
        }
    }

    /// Finds to be expected in a second.
    fn worth(&self, judge: usize, file: &str, seconds: f64) -> f64 {
        let (asked, found) = self.all.get(&judge).copied().unwrap_or_default();
        let usual = (found + 0.5) / (asked + 2.0);
        let (asked, found) = self.file.get(&(judge, file.into())).copied().unwrap_or_default();
        (found + 2.0 * usual) / (asked + 2.0) / (seconds + 0.03)
    }
}

/// The trial of these mistakes before these judges, each with its number.
pub struct Trial<'a> {
    pub mutants: &'a [Mutant],
    pub judges: &'a [(usize, Judge)],
    pub end: Option<Instant>,
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Trial<'_> {
    fn is_over(&self) -> bool {
        self.end.is_some_and(|e| Instant::now() >= e)
    }

    /// Judges until all is known or the time is over.
    pub fn run(&self, ledger: &Mutex<Ledger>, jobs: usize) -> Result<(), String> {
        let merits = Mutex::new(Merits::default());
        for m in self.mutants {
            let l = lock(ledger);
            let by = l.found.get(&m.id).and_then(|by| self.judges.iter().find(|j| by.starts_with(&j.1.name)));
            if let Some((judge, _)) = by {
                lock(&merits).note(*judge, &m.file, true);
            }
        }
        for round in ROUNDS {
            let next = AtomicUsize::new(0);
            let failed = Mutex::new(None);
            std::thread::scope(|s| {
                for _ in 0..jobs {
                    s.spawn(|| {
                        // Relaxed: only a ticket.
                        while let Some(m) = self.mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                            if self.is_over() || lock(&failed).is_some() {
                                return;
                            }
                            if let Err(e) = self.judge(m, round, ledger, &merits) {
                                *lock(&failed) = Some(e);
                            }
                        }
                    });
                }
            });
            if let Some(e) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
                return Err(e);
            }
        }
        Ok(())
    }

    /// One mistake's turn of a round.
    fn judge(
        &self,
        m: &Mutant,
        seconds: f64,
        ledger: &Mutex<Ledger>,
        merits: &Mutex<Merits>,
    ) -> Result<(), String> {
        let (is_found, mut tried) = {
            let l = lock(ledger);
            (l.found.contains_key(&m.id), l.tried.get(&m.id).cloned().unwrap_or_default())
        };
        let mut left: Vec<&(usize, Judge)> =
            self.judges.iter().filter(|j| j.1.reached.contains(&m.id)).collect();
        let mut spent: f64 = left.iter().filter(|j| tried.contains(&j.0)).map(|j| j.1.seconds).sum();
        left.retain(|j| !tried.contains(&j.0));
        if is_found || left.is_empty() {
            return Ok(());
        }
        let before = tried.len();
        while spent < seconds && !left.is_empty() && !self.is_over() {
            let best = {
                let merits = lock(merits);
                let worth = |j: &&(usize, Judge)| merits.worth(j.0, &m.file, j.1.seconds);
                let place = (0..left.len()).max_by(|a, b| worth(&left[*a]).total_cmp(&worth(&left[*b])));
                left.swap_remove(place.unwrap_or_default())
            };
            let by = best.1.finds(m.id)?;
            lock(merits).note(best.0, &m.file, by.is_some());
            if let Some(by) = by {
                eprintln!("{}\t{}\t{by}", m.place(), m.what);
                return lock(ledger).finds(m, &by);
            }
            spent += best.1.seconds;
            tried.insert(best.0);
        }
        if tried.len() > before {
            eprintln!("{}\t{}\topen after {spent:.0} s, {} judges left", m.place(), m.what, left.len());
            lock(ledger).leaves_open(m, &tried)?;
        }
        Ok(())
    }

    /// Those that nobody found, with what is to be said of each.
    pub fn survivors(&self, ledger: &Ledger) -> Vec<(&Mutant, String)> {
        let mut out = Vec::new();
        let none = BTreeSet::new();
        for m in self.mutants.iter().filter(|m| !ledger.found.contains_key(&m.id)) {
            let tried = ledger.tried.get(&m.id).unwrap_or(&none);
            let reach = self.judges.iter().filter(|j| j.1.reached.contains(&m.id));
            let left = reach.clone().filter(|j| !tried.contains(&j.0)).count();
            let what = match (reach.count(), left) {
                (0, _) => "NEVER REACHED".into(),
                (n, 0) => format!("SURVIVES {n} judges"),
                (n, left) => format!("open: {} of {n} judges were asked", n - left),
            };
            out.push((m, what));
        }
        out.sort_by_key(|o| o.0.id);
        out
    }
}
