//! The findings of a run, as they are added up, kept and written to the JSON file.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A pair of calls.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Pair {
    /// The call of lane 0.
    pub a: String,
    /// The call of lane 1.
    pub b: String,
    /// Commutative tests run.
    pub tests: usize,
    /// Commutative tests there are.
    pub known: usize,
    /// Tests in which the lanes shared a byte that one of them wrote, in either order, warm.
    pub conflicting_bytes: usize,
    /// Tests in which they shared a line that one of them wrote.
    pub conflicting_lines: usize,
    /// The same for lanes that had done nothing before, in one order.
    pub cold_bytes: usize,
    /// The same by lines.
    pub cold_lines: usize,
    /// Tests in which both calls store the time of one inode (`judge::stamps_one_inode`), and those
    /// of them with conflicts.
    #[serde(default)]
    pub stamped: Stamped,
}

/// Counts of the tests in which both calls store the time of one inode.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Stamped {
    /// The number of these tests.
    pub tests: usize,
    /// With a conflict by bytes.
    pub bytes: usize,
    /// With a conflict by lines.
    pub lines: usize,
}

/// Conflicts on one field.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Class {
    /// `Type.field`, as far as the source tells.
    pub field: String,
    /// Pairs of calls and in how many tests.
    pub pairs: BTreeMap<String, usize>,
    /// Why it is kept.
    pub why: String,
    /// Tests that share a byte here.
    pub tests_bytes: usize,
    /// Tests that share only the line.
    pub tests_lines: usize,
    /// One test.
    pub example: String,
    /// The accesses of the two lanes there.
    pub sites: [String; 2],
    /// The callers behind the accesses: for each lane the functions and places, innermost first, up
    /// to the library's own. Empty in the answer of a part, and if the example does not show the
    /// conflict again.
    #[serde(default)]
    pub backtraces: Vec<Vec<String>>,
    /// Which call was first when they were taken, or why there are none.
    #[serde(default)]
    pub backtraces_note: String,
}

/// The findings of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Tests run.
    pub tests: usize,
    /// Commutative tests there are.
    pub known: usize,
    /// Tests without a shared byte, warm.
    pub free_by_bytes: usize,
    /// Tests without a shared line, warm.
    pub free_by_lines: usize,
    /// The same cold.
    pub cold_free_by_bytes: usize,
    /// The same cold.
    pub cold_free_by_lines: usize,
    /// Pairs of calls.
    pub pairs: Vec<Pair>,
    /// Conflicts by field.
    pub classes: Vec<Class>,
    /// Tests with conflicts.
    #[serde(default)]
    pub found: Vec<Found>,
    /// Conflicts that did not come again when the test was run again: work that an operation does
    /// now and then for many, or blocks side by side on the heap.
    pub sporadic: BTreeMap<String, usize>,
    /// By the same fields, a test that had one. It may not show it when it is run by itself.
    #[serde(default)]
    pub sporadic_examples: BTreeMap<String, String>,
    /// Tests whose answers, state or recovered state differ from the model's.
    pub errors: Vec<String>,
    /// Seconds.
    pub seconds: f64,
    /// At most so many tests of a pair.
    pub sample: usize,
    /// The sums over several choices of tests.
    #[serde(default)]
    pub views: Vec<View>,
}

/// A test with conflicts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// The arguments of `cargo xtask conflicts` that run it again.
    pub test: String,
    /// Both calls store the time of one inode.
    pub stamped: bool,
    /// Fields that share a byte.
    pub bytes: Vec<String>,
    /// Fields that share only a line.
    pub lines: Vec<String>,
}

/// The share of tests without conflicts among some of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct View {
    /// Which tests, and how they are weighed.
    pub name: String,
    /// The number of tests that were run.
    pub tests: usize,
    /// Per cent free by bytes, warm.
    pub free_by_bytes: f64,
    /// Per cent free by lines, warm.
    pub free_by_lines: f64,
}

impl Tally {
    /// Adds another part.
    pub fn add(&mut self, other: Tally) {
        self.tests += other.tests;
        self.known += other.known;
        self.free_by_bytes += other.free_by_bytes;
        self.free_by_lines += other.free_by_lines;
        self.cold_free_by_bytes += other.cold_free_by_bytes;
        self.cold_free_by_lines += other.cold_free_by_lines;
        for p in other.pairs {
            match self.pairs.iter_mut().find(|q| (&q.a, &q.b) == (&p.a, &p.b)) {
                None => self.pairs.push(p),
                Some(q) => {
                    q.tests += p.tests;
                    q.known += p.known;
                    q.conflicting_bytes += p.conflicting_bytes;
                    q.conflicting_lines += p.conflicting_lines;
                    q.cold_bytes += p.cold_bytes;
                    q.cold_lines += p.cold_lines;
                    q.stamped.tests += p.stamped.tests;
                    q.stamped.bytes += p.stamped.bytes;
                    q.stamped.lines += p.stamped.lines;
                }
            }
        }
        self.errors.extend(other.errors);
        self.found.extend(other.found);
        for (k, n) in &other.sporadic {
            self.now_and_then(k, *n, other.sporadic_examples.get(k).map_or("", |e| e));
        }
        for c in other.classes {
            let mine = self.class(&c.field);
            mine.tests_bytes += c.tests_bytes;
            mine.tests_lines += c.tests_lines;
            for (p, n) in c.pairs {
                *mine.pairs.entry(p).or_default() += n;
            }
            if mine.example.is_empty() {
                (mine.example, mine.sites) = (c.example, c.sites);
            }
        }
    }

    /// Counts conflicts on a field that did not come again; an example, unless it is empty.
    pub fn now_and_then(&mut self, field: &str, times: usize, example: &str) {
        *self.sporadic.entry(field.into()).or_default() += times;
        if !example.is_empty() {
            self.sporadic_examples.entry(field.into()).or_insert_with(|| example.into());
        }
    }

    /// The class of a field.
    pub fn class(&mut self, field: &str) -> &mut Class {
        let at = self.classes.iter().position(|c| c.field == field).unwrap_or_else(|| {
            self.classes.push(Class { field: field.into(), ..Class::default() });
            self.classes.len() - 1
        });
        &mut self.classes[at]
    }
}

/// The figures below which a change may not fall, and what is known of each class. Kept in the
/// tree.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ratchet {
    /// The sample that the figures are of.
    pub sample: usize,
    /// By pair, only where there are conflicts: tests, conflicting by bytes, by lines.
    pub pairs: BTreeMap<String, [usize; 3]>,
    /// By field: why it is worth keeping.
    pub classes: BTreeMap<String, String>,
}

impl Ratchet {
    /// Returns the rules that a run breaks. Smaller samples are parts of larger ones, so their
    /// counts may only be smaller. Of a larger sample than the accepted one it is not known what a
    /// pair that was free may have, nor on which fields: that is not judged.
    pub fn broken_by(&self, t: &Tally) -> Vec<String> {
        let mut out: Vec<String> =
            t.errors.iter().take(5).map(|e| format!("differs from the model: {e}")).collect();
        for p in &t.pairs {
            let key = format!("{},{}", p.a, p.b);
            if p.tests > self.sample && self.sample > 0 && !self.pairs.contains_key(&key) {
                continue;
            }
            let [tests, bytes, lines] = self.pairs.get(&key).copied().unwrap_or([p.tests.max(1), 0, 0]);
            let allowed = |n: usize| {
                if p.tests <= tests.max(self.sample) { n } else { (n * p.tests).div_ceil(tests.max(1)) }
            };
            if p.conflicting_bytes > allowed(bytes) || p.conflicting_lines > allowed(lines) {
                out.push(format!(
                    "{key}: {} and {} of {} tests conflict (bytes, lines); {bytes} and {lines} of {tests} may",
                    p.conflicting_bytes, p.conflicting_lines, p.tests
                ));
            }
        }
        let known = self.sample == 0 || t.sample <= self.sample;
        for c in t.classes.iter().filter(|c| known && !self.classes.contains_key(&c.field)) {
            if !c.pairs.is_empty() && c.pairs.keys().all(|p| self.wholly(p)) {
                continue;
            }
            out.push(format!("{}: a field that was free of conflicts (see {})", c.field, c.example));
        }
        out
    }

    /// Returns whether every test of a pair may conflict. On which fields two syncs meet depends on
    /// which of them came first, and differs from run to run; that they meet is what the counts
    /// hold.
    fn wholly(&self, pair: &str) -> bool {
        self.pairs.get(pair).is_some_and(|[tests, bytes, lines]| bytes == tests && lines == tests)
    }

    /// Accepts the conflicts of a run from now on; keeps the reasons.
    pub fn accept(&mut self, t: &Tally) {
        self.sample = t.sample;
        let bad = t.pairs.iter().filter(|p| p.conflicting_bytes + p.conflicting_lines > 0);
        self.pairs = bad
            .map(|p| (format!("{},{}", p.a, p.b), [p.tests, p.conflicting_bytes, p.conflicting_lines]))
            .collect();
        let old = std::mem::take(&mut self.classes);
        self.classes = t
            .classes
            .iter()
            .map(|c| (c.field.clone(), old.get(&c.field).cloned().unwrap_or_default()))
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(tests: usize, bytes: usize, field: Option<&str>) -> Tally {
        let pair = Pair {
            a: "stat".into(),
            b: "stat".into(),
            tests,
            conflicting_bytes: bytes,
            conflicting_lines: bytes,
            ..Pair::default()
        };
        let mut t = Tally { pairs: vec![pair], sample: tests, ..Tally::default() };
        if let Some(f) = field {
            t.class(f);
        }
        t
    }

    #[test]
    fn parts_add_up_to_one_example_of_each() {
        let mut a = Tally::default();
        a.now_and_then("A.b", 2, "--pair stat,stat --test 1");
        let mut b = Tally::default();
        b.now_and_then("A.b", 3, "--pair stat,stat --test 2");
        b.now_and_then("C.d", 1, "--pair stat,stat --test 3");
        // What was written before there were examples.
        let old = serde_json::json!({"sporadic": {"A.b": 1, "E.f": 1}});
        let mut text = serde_json::to_value(Tally::default()).unwrap();
        let fields = text.as_object_mut().unwrap();
        fields.extend(old.as_object().unwrap().clone());
        fields.remove("sporadic_examples");
        a.add(serde_json::from_value(text).unwrap());
        a.add(b);
        let counts: Vec<_> = a.sporadic.iter().map(|(f, n)| (f.as_str(), *n)).collect();
        assert_eq!(counts, [("A.b", 6), ("C.d", 1), ("E.f", 1)]);
        let examples: Vec<_> =
            a.sporadic_examples.iter().map(|(f, e)| (f.as_str(), &e[e.len() - 1..])).collect();
        assert_eq!(examples, [("A.b", "1"), ("C.d", "3")]);
    }

    #[test]
    fn the_ratchet_lets_nothing_get_worse() {
        let mut r = Ratchet::default();
        assert_eq!(r.broken_by(&tally(10, 0, None)), Vec::<String>::new());
        assert_eq!(r.broken_by(&tally(10, 1, None)).len(), 1, "a pair that was free");
        r.accept(&tally(100, 2, Some("A.b")));
        assert!(r.broken_by(&tally(100, 2, Some("A.b"))).is_empty());
        assert!(r.broken_by(&tally(10, 2, Some("A.b"))).is_empty(), "a sample may hold all of them");
        assert_eq!(r.broken_by(&tally(10, 3, Some("A.b"))).len(), 1);
        assert_eq!(r.broken_by(&tally(10, 1, Some("A.c"))).len(), 1, "another field");
        // A pair of which every test may conflict: its fields are not held, those of other pairs
        // are.
        let mut whole = Ratchet::default();
        whole.accept(&tally(10, 10, Some("A.b")));
        let mut t = tally(10, 10, Some("A.c"));
        t.class("A.c").pairs.insert("stat,stat".into(), 10);
        assert!(whole.broken_by(&t).is_empty());
        t.class("A.c").pairs.insert("stat,open".into(), 1);
        assert_eq!(whole.broken_by(&t).len(), 1);
        // What was free in a sample is held in that and in smaller ones.
        let mut free = Ratchet { sample: 10, ..Ratchet::default() };
        assert_eq!(free.broken_by(&tally(10, 1, None)).len(), 1);
        assert!(free.broken_by(&tally(11, 1, None)).is_empty());
        free.accept(&tally(11, 1, None));
        assert_eq!(free.broken_by(&tally(11, 2, None)).len(), 1);
    }
}
