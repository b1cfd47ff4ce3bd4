use crate::explore;
use lanefs_sync::SeqWord;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use std::sync::Arc;

/// A page of two words, written and read with relaxed atomics as a racy copy does.
#[derive(Default)]
struct Page {
    word: SeqWord,
    halves: [AtomicU32; 2],
}

impl Page {
    fn write(&self, value: u32) {
        self.halves.iter().for_each(|half| half.store(value, Ordering::Relaxed));
    }

    fn copy(&self) -> [u32; 2] {
        [self.halves[0].load(Ordering::Relaxed), self.halves[1].load(Ordering::Relaxed)]
    }
}

#[test]
fn a_validated_copy_is_whole_and_no_older_than_its_sequence() {
    explore(4, || {
        let page = Arc::new(Page::default());
        let writer = {
            let page = page.clone();
            thread::spawn(move || {
                for value in 1..3 {
                    page.word.lock();
                    page.write(value);
                    page.word.unlock();
                }
            })
        };
        if let Some(seq) = page.word.begin_read() {
            let copy = page.copy();
            if page.word.validate(seq) {
                assert_eq!(copy, [seq / 4; 2]);
            }
        }
        writer.join().unwrap();
        assert_eq!(page.copy(), [2; 2]);
    });
}

/// A lost wakeup is a deadlock; a broken exclusion shows in the count.
#[test]
fn three_lockers_all_get_it() {
    explore(3, || {
        let page = Arc::new(Page::default());
        let add = |page: &Page, unchanged: bool| {
            let guard = page.word.guard();
            page.write(page.copy()[0] + 1);
            // Also the other way to let go must wake.
            if unchanged {
                guard.unchanged();
            }
        };
        let threads = [true, false].map(|unchanged| {
            let page = page.clone();
            thread::spawn(move || add(&page, unchanged))
        });
        add(&page, false);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(page.copy(), [3; 2]);
        assert_eq!(page.word.begin_read(), Some(8));
    });
}

/// Who no longer wants the lock goes away, and may have had the wake of another that does.
#[test]
fn who_goes_away_leaves_nobody_asleep() {
    explore(3, || {
        let page = Arc::new(Page::default());
        let owner = Arc::new(AtomicU32::new(1));
        page.word.lock();
        let leaves = {
            let (page, owner) = (page.clone(), owner.clone());
            thread::spawn(move || {
                if page.word.lock_while(|| owner.load(Ordering::Relaxed) == 1) {
                    page.word.unlock_unchanged();
                }
            })
        };
        let stays = {
            let page = page.clone();
            thread::spawn(move || {
                page.word.lock();
                page.write(page.copy()[0] + 1);
                page.word.unlock();
            })
        };
        page.word.unlock();
        page.word.lock();
        // The owner changes under the lock.
        owner.store(2, Ordering::Relaxed);
        page.word.unlock();
        leaves.join().unwrap();
        stays.join().unwrap();
        assert_eq!(page.copy(), [1; 2]);
    });
}
