//! Freeing space: what was removed counts as free only once a checkpoint has folded that.

use super::{Persist, checkpoint, commit, host, reaper};
use crate::error::Result;
use lanefs_store::Claimant;
use std::time::{Duration, Instant};

/// Blocks that are worth a checkpoint when somebody asks how much is free: 1 MiB.
const WORTH: u64 = 256;

/// Makes what was deleted count as free, on a full volume. Returns false if there is no space even
/// then; true also if something was given back and is gone again already: others take space
/// while this thread frees it. The caller holds no lock and is not pinned: the grace of what
/// was just deleted is waited for.
#[cold]
pub(crate) fn free_space(persist: &Persist) -> bool {
    let Ok(reaped) = reaper::reap(persist, true) else { return false };
    // Where most of what is promised was for files that lived for a moment a commit gives it
    // back.
    if reaped > 0
        && commit::seal_and_commit(persist).is_ok()
        && reaper::release_cancelled(persist) * persist.store.metadata_copies()
            > persist.store.space().reserved
    {
        return true;
    }
    let Ok(given_back) = checkpoint::checkpoint(persist) else { return false };
    reaped > 0 || given_back > 0 || persist.store.has_for(Claimant::Root, 1)
}

/// Time that nobody used, of which a tenth may go into one burst of freeing for those who ask.
const SAVED: Duration = Duration::from_millis(500);

/// The time that goes into freeing for those who ask how much is free: a tenth at most.
#[derive(Default)]
pub(crate) struct ForAskers {
    /// Until when what was done has used up its tenth; `None`: nothing was done yet.
    used_up: Option<Instant>,
}

impl ForAskers {
    /// Returns whether more may be done at this time.
    fn is_due(&self, now: Instant) -> bool {
        self.used_up.is_none_or(|until| until <= now)
    }

    /// Takes note of something that was begun then and took so long.
    fn add(&mut self, began: Instant, took: Duration) {
        debug_assert!(self.is_due(began), "it was done before its time");
        let unused = began.checked_sub(SAVED);
        let from = self.used_up.max(unused).unwrap_or(began);
        self.used_up = from.checked_add(took * 10);
    }
}

/// Frees what was removed, for a caller that asks how much is free: else its blocks are in use
/// until the next checkpoint, half a minute perhaps. So that whoever asks all the time does not
/// hold up others, one tenth of the time goes into this at most, and one caller at a time does it:
/// the others take what is free by then. Who asks now and then has all of it done.
pub(crate) fn free_removed(persist: &Persist) -> Result<()> {
    // Nobody waits for this lock.
    let Some(mut time) = persist.for_askers.try_lock() else { return Ok(()) };
    let began = Instant::now();
    if !time.is_due(began) {
        return Ok(());
    }
    let freed = free_all(persist);
    time.add(began, began.elapsed());
    freed
}

/// Ends what has lost its last name by now, and makes a checkpoint if that is worth one. Does
/// nothing where nothing can be written, or a host has no space.
pub(crate) fn free_all(persist: &Persist) -> Result<()> {
    if persist.writable().is_err() || persist.store.is_host_short() {
        return Ok(());
    }
    reaper::reap_for_checkpoint(persist)?;
    if persist.reaper.lock().has_waiting() {
        // A front end may be about to learn that nobody knows them any more.
        lanefs_sync::schedule::sleep(Duration::from_millis(4));
        reaper::reap_for_checkpoint(persist)?;
    }
    if persist.reaper.lock().blocks() >= WORTH {
        host::put_off(checkpoint::checkpoint(persist))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{ForAskers, SAVED};
    use crate::persist::reaper;
    use crate::persist::testing::undisturbed;
    use crate::{Cred, File, Fs, MountOptions, OpenOptions, Volume};
    use lanefs_store::device::{Device, HookedDevice, Kind, MemoryDevice};
    use lanefs_store::{FormatOptions, Store};
    use lanefs_sync::random::Rng;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    /// Who asks how much is free has what was removed ended, but one at a time does, and for a
    /// tenth of the time: the others do not wait for that.
    #[test]
    fn who_asks_how_much_is_free_waits_for_nobody_who_asks() {
        undisturbed(askers);
    }

    fn askers() -> Result<(), String> {
        let (v, _) = crate::persist::testing::volume(64);
        let (fs, persist) = (v.fs(), &v.0.persist);
        let ended = |asks: &dyn Fn()| {
            fs.write("/file", [7; 4096]).unwrap();
            fs.unlink("/file").unwrap();
            asks();
            let left = (0..persist.journal.lanes.len()).map(|l| persist.journal.lanes.lock(l).orphans.len());
            left.sum::<usize>() == 0
        };
        let ask = || assert!(v.statfs().unwrap().free > 0);
        let used_up = |until| persist.for_askers.lock().used_up = Some(until);
        let done = |what: &str| if ended(&ask) { Ok(()) } else { Err(what.to_owned()) };
        done("the first who asks has it done")?;
        used_up(Instant::now() + Duration::from_secs(3600));
        assert!(!ended(&ask), "the tenth of an hour is used up");
        used_up(Instant::now());
        done("what was left is done by the next")?;
        used_up(Instant::now());
        let beside = || {
            let _somebody = persist.for_askers.lock();
            ask();
        };
        assert!(!ended(&beside), "somebody is at it");
        done("and by who comes then")?;
        v.close().unwrap();
        Ok(())
    }

    /// What a front end still knew at the first look, and does not know any more at the next, is
    /// free for who asks.
    #[test]
    fn what_is_forgotten_a_moment_later_is_free_too() {
        undisturbed(forgotten_a_moment_later);
    }

    fn forgotten_a_moment_later() -> Result<(), String> {
        let (v, _) = crate::persist::testing::volume(64);
        let fs = v.fs();
        fs.write("/file", vec![7; 4 << 20]).unwrap();
        v.sync().unwrap();
        let before = v.statfs().unwrap().free;
        let looks = AtomicUsize::new(0);
        v.keep_unnamed(Some(Box::new(move |_| looks.fetch_add(1, Ordering::Relaxed) == 0)));
        fs.unlink("/file").unwrap();
        let blocks = v.statfs().unwrap().free - before;
        v.close().unwrap();
        if blocks >= 1000 { Ok(()) } else { Err(format!("{blocks} blocks of 1024 are free")) }
    }

    /// What a front end panics about is kept, and nobody else gets that: not who asks for space,
    /// and not the background, whose thread it ended.
    #[test]
    fn what_a_front_end_panics_about_is_kept() {
        let (v, _) = crate::persist::testing::volume(64);
        let fs = v.fs();
        fs.write("/file", vec![7; 4 << 20]).unwrap();
        v.sync().unwrap();
        let before = v.statfs().unwrap().free;
        v.keep_unnamed(Some(Box::new(|ino| panic!("who knows of {ino}?"))));
        fs.unlink("/file").unwrap();
        assert!(v.statfs().unwrap().free < before + 500);
        v.keep_unnamed(None);
        // Who asks often does not have it looked for each time; somebody who needs the space does.
        assert!(v.has_space(before * 4096 + (4 << 20) - (100 << 10), true));
        v.close().unwrap();
    }

    /// Who asks now and then has all done; who asks all the time has a tenth of the time.
    #[test]
    fn time_that_nobody_used_is_saved_up_to_a_bound() {
        let (begin, ms) = (Instant::now(), Duration::from_millis);
        let mut time = ForAskers::default();
        assert!(time.is_due(begin));
        let long_after = begin + SAVED * 4;
        // Of half a second that was saved 200 ms are used, then all and 300 ms more.
        time.add(long_after, ms(20));
        assert!(time.is_due(long_after + ms(20)));
        time.add(long_after + ms(20), ms(60));
        assert!(!time.is_due(long_after + ms(299)) && time.is_due(long_after + ms(300)));
        // Nothing was saved: nine times what it takes have to pass.
        let next = long_after + ms(300);
        time.add(next, ms(10));
        assert!(!time.is_due(next + ms(99)) && time.is_due(next + ms(100)));
    }

    /// What a large file held that ends while a checkpoint is made for somebody who finds no space:
    /// that checkpoint does not give it back, and who waits for it is not refused.
    #[test]
    fn what_ends_while_space_is_made_is_given_back_before_anybody_is_refused() {
        type Ask = fn(&Fs, &File, u64) -> bool;
        let asks: [(&str, Ask); 3] = [
            ("has_space", |fs, _, bytes| fs.volume().has_space(bytes, true)),
            ("fallocate", |_, file, bytes| file.allocate(0, 0, bytes).is_ok()),
            ("append", |_, file, bytes| file.append(&vec![9; bytes as usize]).is_ok()),
        ];
        for (what, ask) in asks {
            let device = Arc::new(HookedDevice::new(MemoryDevice::new(24 << 20).unwrap()));
            let d: Arc<dyn Device> = device.clone();
            let format = FormatOptions { segment_blocks: 64, mlogs: 1, ..FormatOptions::default() };
            Store::format(std::slice::from_ref(&d), &format).unwrap();
            let options = MountOptions { background: false, lanes: 2, ..MountOptions::default() };
            let volume = Volume::open_devices(vec![d], &options).unwrap();
            let fs = volume.as_user(Cred::root());
            let most = fs.volume().statfs().unwrap().free / 3 * 2 * 4096;
            fs.write("/large", vec![7; most as usize]).unwrap();
            let file = fs.open("/next", OpenOptions::new().read(true).write(true).create(true)).unwrap();
            volume.sync().unwrap();
            volume.checkpoint().unwrap();
            // Something for the checkpoint to write.
            fs.create("/small").unwrap();
            let theirs = volume.clone();
            device.before(Kind::Write, move || {
                // Another thread: this one is in the middle of a checkpoint.
                let end = move || {
                    theirs.as_user(Cred::root()).unlink("/large").unwrap();
                    assert_eq!(reaper::reap(&theirs.0.persist, true).unwrap(), 1);
                };
                std::thread::spawn(end).join().expect("what is done midway succeeds");
                Ok(())
            });
            assert!(ask(&fs, &file, most), "{what}: {:?}", volume.statfs());
            assert!(device.is_done(Kind::Write), "{what}: it ended midway");
            drop(file);
            drop(fs);
            volume.close().unwrap();
        }
    }

    /// Files that are not folded have their tails in the log alone. A checkpoint of the store's own
    /// writes these again: more than is kept back for it, where hardly a segment is free.
    #[test]
    fn an_fsync_finds_space_where_much_of_the_log_is_not_folded() {
        for (unlinked, seed) in [(false, 1), (true, 2)] {
            let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(128 << 20).unwrap());
            let format = FormatOptions { segment_blocks: 128, ..FormatOptions::default() };
            Store::format(std::slice::from_ref(&device), &format).unwrap();
            let options =
                MountOptions { cache_size: 512 << 20, background: false, ..MountOptions::default() };
            let v = Volume::open_devices(vec![device], &options).unwrap();
            let fs = v.as_user(Cred::root());
            fs.write("/old", vec![1; 4 << 20]).unwrap();
            v.sync().unwrap();
            v.checkpoint().unwrap();
            let content = vec![2; (16 << 10) + 3000];
            let pressure = || v.0.persist.store.pressure();
            let mut files = Vec::new();
            // While a quarter is free nobody folds.
            while pressure().free_segments > pressure().segments / 4 + 4 {
                let path = format!("/{}", files.len());
                let f = fs.create(&*path).unwrap();
                f.append(&content).unwrap();
                f.sync_all().unwrap();
                if unlinked && files.len() % 2 == 0 {
                    fs.unlink(&*path).unwrap();
                }
                files.push(path);
            }
            // What is written over changes no name.
            let old = fs.open("/old", OpenOptions::new().write(true)).unwrap();
            let mut rng = Rng::new(seed);
            for n in 0..20_000 {
                old.write_all_at(&[n as u8; 4096], rng.below(1024) * 4096).unwrap();
                let synced = old.sync_data();
                assert!(
                    synced.is_ok(),
                    "fsync {n} behind {} files: {synced:?}, {:?}",
                    files.len(),
                    pressure()
                );
            }
            v.sync().unwrap();
            let left =
                files.iter().filter(|path| fs.read(&***path).is_ok_and(|read| read == content)).count();
            assert_eq!(left, if unlinked { files.len() / 2 } else { files.len() });
            v.close().unwrap();
        }
    }
}
