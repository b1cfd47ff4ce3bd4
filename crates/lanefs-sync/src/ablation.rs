//! Techniques that can be taken out, to see what each is worth (`lanefs-bench ablate`).
//!
//! A structure that has a technique keeps a [`Switch`], set when it is made from what `without`
//! lists at that moment. Nothing that is on disk depends on it. Without the feature `ablation` a
//! switch takes no space, [`Switch::off`] is a constant, and nothing of this is in the program;
//! only `lanefs-bench` asks for the feature.

/// A technique that can be taken out, with its replacement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Technique {
    /// The reader pass-through semaphore (Max 4.1). In its place: one count of readers for all, as
    /// in a reader-writer semaphore.
    PassThrough,
    /// Inodes in groups (Max 4.2, of file cells). In its place: one group, the inodes of the store
    /// behind one lock, those of memory found under one reader-writer lock.
    CellGroups,
    /// A log for each lane (ScaleFS 4, ScaleXFS 4.2). In its place: one list for all lanes, with
    /// one lock.
    LaneLogs,
    /// The strided counter (ScaleXFS 4.4). In its place: one counter for all lanes.
    StridedCounter,
    /// Free inode numbers of the lanes' own, scanned from where the last scan ended (F2FS unlink).
    /// In its place: one bitmap, scanned from its start, under one mutex.
    LaneNumbers,
    /// One log for all on a full volume (Max 4.3). In its place: each mlog goes on taking what its
    /// lanes write.
    OneLog,
    /// The paths that lanes remember. In its place: each is walked from its first component on.
    Paths,
    /// The addresses that a path leads through, asked for before it is walked. In its place: each
    /// is asked for when the one before it says where it is.
    Trails,
}

impl Technique {
    /// All of them.
    pub const ALL: [Technique; 8] = [
        Technique::PassThrough,
        Technique::CellGroups,
        Technique::LaneLogs,
        Technique::StridedCounter,
        Technique::LaneNumbers,
        Technique::OneLog,
        Technique::Paths,
        Technique::Trails,
    ];
}

#[cfg(feature = "ablation")]
std::thread_local! {
    static OFF: std::cell::RefCell<Vec<Technique>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Runs `make`; what it makes, in this thread, has these techniques off.
#[cfg(feature = "ablation")]
pub fn without<R>(techniques: &[Technique], make: impl FnOnce() -> R) -> R {
    let before = OFF.with(|off| off.replace(techniques.to_vec()));
    let made = make();
    let ours = OFF.with(|off| off.replace(before));
    debug_assert_eq!(ours, techniques, "what was nested left another list");
    made
}

#[cfg(feature = "ablation")]
std::thread_local! {
    static STRIDE: std::cell::Cell<Option<i64>> = const { std::cell::Cell::new(None) };
}

/// Runs `make`; strided counters that it makes, in this thread, have strides of at most so many
/// tokens, in place of what their owners say.
#[cfg(feature = "ablation")]
pub fn with_stride<R>(stride: i64, make: impl FnOnce() -> R) -> R {
    let before = STRIDE.replace(Some(stride));
    let made = make();
    let ours = STRIDE.replace(before);
    debug_assert_eq!(ours, Some(stride), "what was nested left another length");
    made
}

/// Returns the length of strides of a counter made now, of which its owner said `usual`.
#[inline(always)]
pub fn stride(usual: i64) -> i64 {
    #[cfg(feature = "ablation")]
    return STRIDE.get().unwrap_or(usual);
    #[cfg(not(feature = "ablation"))]
    usual
}

/// The state of a technique in one structure: on or off.
#[derive(Clone, Copy, Debug)]
pub struct Switch(#[cfg(feature = "ablation")] bool);

impl Switch {
    /// Returns the switch for a structure made now.
    #[cfg(feature = "ablation")]
    pub fn of(technique: Technique) -> Switch {
        Switch(OFF.with(|off| off.borrow().contains(&technique)))
    }

    /// Returns the switch for a structure made now: never off, without the feature.
    #[cfg(not(feature = "ablation"))]
    #[inline(always)]
    pub const fn of(_: Technique) -> Switch {
        Switch()
    }

    /// Returns whether the technique is off.
    #[cfg(feature = "ablation")]
    #[inline(always)]
    pub fn off(self) -> bool {
        self.0
    }

    /// Returns whether the technique is off: never, without the feature.
    #[cfg(not(feature = "ablation"))]
    #[inline(always)]
    pub const fn off(self) -> bool {
        false
    }
}

/// A reader-writer lock that is only there when a technique is off.
#[derive(Debug)]
pub struct OneLock(#[cfg(feature = "ablation")] Option<parking_lot::RwLock<()>>);

/// The guard of [`OneLock::read`] and [`OneLock::write`].
#[cfg(feature = "ablation")]
pub struct Held<'a> {
    _read: Option<parking_lot::RwLockReadGuard<'a, ()>>,
    _write: Option<parking_lot::RwLockWriteGuard<'a, ()>>,
}

/// The guard of [`OneLock::read`] and [`OneLock::write`]: nothing, without the feature.
#[cfg(not(feature = "ablation"))]
pub struct Held<'a>(std::marker::PhantomData<&'a ()>);

impl OneLock {
    /// Returns the lock for a structure made now.
    pub fn of(technique: Technique) -> OneLock {
        let _switch = Switch::of(technique);
        OneLock(
            #[cfg(feature = "ablation")]
            _switch.off().then(|| parking_lot::RwLock::new(())),
        )
    }

    /// Locks shared, where the technique is off.
    #[inline(always)]
    pub fn read(&self) -> Held<'_> {
        #[cfg(feature = "ablation")]
        return Held { _read: self.0.as_ref().map(|l| l.read_recursive()), _write: None };
        #[cfg(not(feature = "ablation"))]
        Held(std::marker::PhantomData)
    }

    /// Locks alone, where the technique is off.
    #[inline(always)]
    pub fn write(&self) -> Held<'_> {
        #[cfg(feature = "ablation")]
        return Held { _read: None, _write: self.0.as_ref().map(|l| l.write()) };
        #[cfg(not(feature = "ablation"))]
        Held(std::marker::PhantomData)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "ablation")]
    fn only_what_is_made_within_has_it_off() {
        let (inside, other) = without(&[Technique::PassThrough], || {
            (Switch::of(Technique::PassThrough), Switch::of(Technique::LaneLogs))
        });
        assert!(inside.off() && !other.off() && !Switch::of(Technique::PassThrough).off());
        let lock = without(&[Technique::CellGroups], || OneLock::of(Technique::CellGroups));
        let (_a, _b) = (lock.read(), lock.read());
        assert!(lock.0.as_ref().is_some_and(|l| l.try_write().is_none()));
    }

    #[test]
    #[cfg(feature = "ablation")]
    fn a_length_of_strides_is_of_what_is_made_within() {
        assert_eq!((with_stride(7, || stride(64)), stride(64)), (7, 64));
    }

    #[test]
    #[cfg(not(feature = "ablation"))]
    fn without_the_feature_it_is_nothing() {
        assert!(Technique::ALL.iter().all(|&t| !Switch::of(t).off()));
        assert_eq!(size_of::<Switch>() + size_of::<OneLock>(), 0);
    }
}
