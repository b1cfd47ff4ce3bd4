//! All tests of a pair of calls: every class of initial state and arguments in which the two
//! commute.

use super::call::Call;
use super::choice::Choices;
use super::judge;
use super::lazy;
use super::test_case::{Classes, Names, Test, build};

/// The findings of an exploration of a pair.
#[derive(Debug, Default)]
pub struct Pair {
    /// States and arguments looked at.
    pub leaves: usize,
    /// The commutative ones, one of each class.
    pub tests: Vec<Test>,
    /// Leaves on which the two models disagree: the lazy one says that they commute, the reference
    /// that they do not.
    pub rejected: usize,
}

/// The commutative tests of a pair.
pub fn tests(calls: (Call, Call), names: &Names) -> Result<Pair, String> {
    let mut out = Pair::default();
    each_leaf(calls, &mut |leaf, classes| {
        out.leaves += 1;
        if leaf.commutes && classes.is_new(&leaf, calls) {
            let t = build(&leaf, calls, out.tests.len(), names);
            if judge::commutes(&t)
                .map_err(|e| format!("{} and {}: {e}: {leaf:?}", calls.0.name(), calls.1.name()))?
            {
                out.tests.push(t);
            } else {
                out.rejected += 1;
            }
        }
        Ok(())
    })?;
    Ok(out)
}

/// Calls `f` with every leaf of a pair.
pub fn each_leaf(
    calls: (Call, Call),
    f: &mut dyn FnMut(lazy::Leaf, &mut Classes) -> Result<(), String>,
) -> Result<(), String> {
    let mut classes = Classes::default();
    let mut c = Choices::default();
    loop {
        if let Some(leaf) = lazy::explore(&mut c, calls) {
            f(leaf, &mut classes)?;
        }
        if !c.advance() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names((0..Names::NEEDED).map(|n| format!("n{n}")).collect())
    }

    /// Checks that the reference throws away what the lazy model throws away, and keeps nearly
    /// always what it keeps.
    #[test]
    fn the_lazy_model_agrees_with_the_reference() {
        use Call::*;
        let pairs = [
            (Create, Unlink),
            (Open, Mkdir),
            (Unlink, Rmdir),
            (Mkdir, Rmdir),
            (Stat, Pwrite),
            (Read, Append),
            (Pwrite, Pwrite),
            (Fsync, Fsync),
            (Unlink, Fsync),
            (Pwrite, Fsync),
            (Chmod, Chmod),
            (Readdir, Create),
            (Setxattr, Getxattr),
            (Close, Fstat),
        ];
        for calls in pairs {
            let (mut both, mut neither, mut hasty) = (0, 0, 0);
            each_leaf(calls, &mut |leaf, _| {
                let t = build(&leaf, calls, 0, &names());
                match (leaf.commutes, judge::commutes(&t)?) {
                    (true, true) => both += 1,
                    (false, false) => neither += 1,
                    (true, false) => hasty += 1,
                    (false, true) => {
                        return Err(format!("{calls:?} commutes by the reference alone: {leaf:?}"));
                    }
                }
                Ok(())
            })
            .unwrap();
            assert!(both > 0 && both + neither > 20 * hasty, "{calls:?}: {both} {neither} {hasty}");
        }
    }

    #[test]
    fn independent_calls_commute_and_dependent_ones_do_not() {
        let n = |a, b| tests((a, b), &names()).unwrap();
        // Two calls that look, at any state at all.
        let p = n(Call::Stat, Call::Access);
        assert_eq!(p.rejected, 0);
        assert!(p.tests.len() > 20);
        // Nothing done to a file commutes with its being made durable, except what changes nothing.
        assert_eq!(format!("{:?}", n(Call::Append, Call::Sync).tests), "[]");
    }
}
