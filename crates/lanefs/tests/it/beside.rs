//! Several programs at once on a recorded device, with the background and somebody who makes
//! others' files durable: at any instant the machine may stop, and what each program is promised
//! has to be found. Each has files of its own and changes them one call after the other, so that
//! what it may find is known; how the calls of all meet in the volume is up to the threads.

use crate::instants::{Recorded, read};
use lanefs::{File, Fs, OpenOptions};
use lanefs_store::device::{Crash, Recorder};
use lanefs_sync::random::Rng;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The turns of a program: those that it had begun by an instant, and the last one that was
/// promised to it.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    begun: u64,
    durable: u64,
}

struct Program {
    name: &'static str,
    /// Makes its files; all is durable when it has begun.
    begins: fn(&Fs),
    /// Takes one turn; returns whether all up to it is durable.
    turn: fn(&Fs, u64) -> bool,
    /// Says what is wrong with what is found.
    check: fn(&Fs, Turns) -> Result<(), String>,
}

fn open(fs: &Fs, path: &str) -> File {
    fs.open(path, OpenOptions::new().read(true).write(true).create(true)).unwrap()
}

fn sync_dir(fs: &Fs, path: &str) {
    fs.open(path, &OpenOptions::new()).unwrap().sync_all().unwrap();
}

fn is(right: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if right { Ok(()) } else { Err(what()) }
}

/// The content of a version: its number first, and no byte zero.
fn version(k: u64) -> Vec<u8> {
    let len = 9 + Rng::at(k).bits() % [200, 9_000, 300_000][k as usize % 3];
    let text = format!("{k:>8}");
    text.bytes().chain((8..len).map(|i| ((i + k) % 255) as u8 + 1)).collect()
}

fn number_of(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes.get(..8)?).ok()?.trim().parse().ok()
}

/// Writes a file and renames it over another, mostly without an fsync (F5).
const REPLACES: Program = Program {
    name: "replaces",
    begins: |fs| {
        fs.mkdir("/replaces", 0o755).unwrap();
        fs.write("/replaces/target", version(0)).unwrap();
    },
    turn: |fs, k| {
        fs.write("/replaces/new", version(k)).unwrap();
        if k % 3 == 0 {
            open(fs, "/replaces/new").sync_data().unwrap();
        }
        fs.rename("/replaces/new", "/replaces/target").unwrap();
        if k % 4 == 0 {
            sync_dir(fs, "/replaces");
        }
        k % 4 == 0
    },
    check: |fs, turns| {
        let found = fs.read("/replaces/target").map_err(|e| e.to_string())?;
        let k = number_of(&found).ok_or(format!("{} bytes without a number", found.len()))?;
        is(found == version(k), || format!("version {k} is not whole: {} bytes", found.len()))?;
        is((turns.durable..=turns.begun).contains(&k), || format!("version {k} of {turns:?}"))
    },
};

fn record(k: u64) -> Vec<u8> {
    let len = 40 + Rng::at(k).bits() % [100, 9_000, 200_000][k as usize % 3];
    (0..len).map(|i| ((i + k * 7) % 255) as u8 + 1).collect()
}

/// Appends records (F2, F9).
const APPENDS: Program = Program {
    name: "appends",
    begins: |fs| drop(open(fs, "/appends")),
    turn: |fs, k| {
        let mut log = fs.open("/appends", OpenOptions::new().append(true)).unwrap();
        std::io::Write::write_all(&mut log, &record(k)).unwrap();
        match k % 10 {
            3 => log.sync_data().unwrap(),
            7 => log.sync_all().unwrap(),
            _ => return false,
        }
        true
    },
    check: |fs, turns| {
        let found = fs.read("/appends").map_err(|e| e.to_string())?;
        let whole: Vec<u8> = (1..=turns.begun).flat_map(record).collect();
        let least: usize = (1..=turns.durable).map(|k| record(k).len()).sum();
        is(found.len() >= least, || format!("{} bytes of {least} in {turns:?}", found.len()))?;
        let wrong = found.iter().zip(&whole).position(|(a, b)| a != b);
        is(wrong.is_none() && found.len() <= whole.len(), || {
            format!("byte {wrong:?} of {} is wrong", found.len())
        })
    },
};

const PAGES: u64 = 64;

/// Writes pages of a file in place (F1, F2).
const UPDATES: Program = Program {
    name: "updates",
    begins: |fs| fs.write("/updates", vec![0; PAGES as usize * 4096]).unwrap(),
    turn: |fs, k| {
        let (file, page) = (open(fs, "/updates"), k % PAGES);
        file.write_all_at(&k.to_ne_bytes().repeat(512), page * 4096).unwrap();
        if k % 7 == 0 {
            file.sync_data().unwrap();
        }
        k % 7 == 0
    },
    check: |fs, turns| {
        let found = fs.read("/updates").map_err(|e| e.to_string())?;
        is(found.len() as u64 == PAGES * 4096, || format!("{} bytes", found.len()))?;
        for (page, bytes) in (0..PAGES).zip(found.chunks(4096)) {
            let k = u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes"));
            is(bytes == k.to_ne_bytes().repeat(512), || format!("page {page} is torn"))?;
            is(k == 0 || k % PAGES == page, || format!("page {page} has turn {k}"))?;
            let least = (1..=turns.durable).rev().find(|d| d % PAGES == page).unwrap_or(0);
            is((least..=turns.begun).contains(&k), || format!("page {page}: {k}, at least {least}"))?;
        }
        Ok(())
    },
};

/// What the cutting program writes in a turn: so much, of which so much is left, then so long.
fn lengths(k: u64) -> [u64; 3] {
    [50_000 + k * 100, 10_000 + k, 400_000 + k]
}

/// Cuts a file to nothing, writes it, cuts it, and makes it longer by zeros (F3, F4, F9).
const CUTS: Program = Program {
    name: "cuts",
    begins: |fs| drop(open(fs, "/cuts")),
    turn: |fs, k| {
        let ([written, left, end], tag) = (lengths(k), (k % 255) as u8 + 1);
        let file = open(fs, "/cuts");
        file.set_len(0).unwrap();
        file.write_all_at(&vec![tag; written as usize], 0).unwrap();
        file.set_len(left).unwrap();
        file.set_len(end).unwrap();
        if k % 6 == 0 {
            file.sync_all().unwrap();
        }
        k % 6 == 0
    },
    check: |fs, turns| {
        let found = fs.read("/cuts").map_err(|e| e.to_string())?;
        let Some(&tag) = found.first() else {
            // As the next turn begins, or before the first is durable.
            return is(turns.begun > turns.durable || turns.begun == 0, || format!("empty: {turns:?}"));
        };
        let turn = |k: &u64| (k % 255) as u8 + 1 == tag;
        let k = (turns.durable.max(1)..=turns.begun).rev().find(turn);
        let k = k.ok_or(format!("byte {tag} is of no turn of {turns:?}"))?;
        let [written, left, end] = lengths(k);
        let tagged = found.iter().take_while(|b| **b == tag).count() as u64;
        let size = found.len() as u64;
        let zeros = found[tagged as usize..].iter().all(|b| *b == 0);
        let right = match size {
            _ if size == end => tagged == left && zeros,
            // Grown by the write, a part of it, or cut.
            _ => tagged == size && size <= written,
        };
        is(right, || format!("turn {k} of {turns:?}: {tagged} of {size} bytes written"))
    },
};

/// Makes files and removes the oldest: what is found is what it had at one moment (C2).
const ROLLS: Program = Program {
    name: "rolls",
    begins: |fs| fs.mkdir("/rolls", 0o755).unwrap(),
    turn: |fs, k| {
        fs.write(format!("/rolls/{k}"), version(k)).unwrap();
        if k > 10 {
            fs.unlink(format!("/rolls/{}", k - 10)).unwrap();
        }
        if k % 8 == 0 {
            sync_dir(fs, "/rolls");
        }
        k % 8 == 0
    },
    check: |fs, turns| {
        let mut names: Vec<u64> = crate::ls(fs, "/rolls").iter().filter_map(|n| n.parse().ok()).collect();
        names.sort_unstable();
        let last = names.last().copied().unwrap_or(0);
        is((turns.durable..=turns.begun).contains(&last), || format!("{last} of {turns:?}"))?;
        let right = [last.saturating_sub(10), last.saturating_sub(9)];
        let first = names.first().copied().unwrap_or(0);
        is(right.map(|f| f.max(u64::from(last > 0))).contains(&first), || format!("{first} to {last}"))?;
        is(last == 0 || names.len() as u64 == last - first + 1, || format!("names {names:?}"))
    },
};

/// Moves a file from one directory to another and back (C1).
const MOVES: Program = Program {
    name: "moves",
    begins: |fs| {
        fs.mkdir("/moves", 0o755).unwrap();
        fs.mkdir("/moves/0", 0o755).unwrap();
        fs.mkdir("/moves/1", 0o755).unwrap();
        fs.write("/moves/0/file", version(2)).unwrap();
    },
    turn: |fs, k| {
        fs.rename(format!("/moves/{}/file", (k + 1) % 2), format!("/moves/{}/file", k % 2)).unwrap();
        if k % 9 == 0 {
            sync_dir(fs, "/moves/1");
        }
        false
    },
    check: |fs, _| {
        let found = [read(fs, "/moves/0/file")?, read(fs, "/moves/1/file")?];
        let found: Vec<Vec<u8>> = found.into_iter().flatten().collect();
        is(found.len() == 1 && found[0] == version(2), || format!("it is found {} times", found.len()))
    },
};

/// Writes what nobody else may read behind a change of the mode (F8).
const HIDES: Program = Program {
    name: "hides",
    begins: |fs| fs.mkdir("/hides", 0o755).unwrap(),
    turn: |fs, k| {
        let path = format!("/hides/{}", k % 5);
        let file = open(fs, &path);
        file.set_len(0).unwrap();
        // Else what was hidden before may be found with the mode that comes now.
        file.sync_all().unwrap();
        fs.chmod(&path, 0o644).unwrap();
        file.write_all_at(&[b'p'; 6_000], 0).unwrap();
        fs.chmod(&path, 0o600).unwrap();
        file.write_all_at(&[b's'; 5_000], 100).unwrap();
        false
    },
    check: |fs, _| {
        for n in 0..5 {
            let path = format!("/hides/{n}");
            let Some(found) = read(fs, &path)? else { continue };
            let stat = fs.stat(&path).map_err(|e| e.to_string())?;
            let hidden = stat.mode & 0o777 == 0o600;
            is(hidden || !found.contains(&b's'), || format!("{n} has mode {:o}", stat.mode))?;
            is(!found.contains(&0), || format!("zeros in {n}"))?;
        }
        Ok(())
    },
};

const PROGRAMS: [Program; 7] = [REPLACES, APPENDS, UPDATES, CUTS, ROLLS, MOVES, HIDES];

/// Makes durable what others write.
fn meddle(fs: &Fs, seed: u64, running: &AtomicUsize) {
    let mut rng = Rng::at(seed);
    let files =
        ["/replaces/target", "/replaces/new", "/appends", "/updates", "/cuts", "/hides/1", "/moves/1/file"];
    while running.load(Ordering::Relaxed) > 0 {
        match rng.bits() % 20 {
            0 => fs.volume().sync().unwrap(),
            1 => fs.volume().checkpoint().unwrap(),
            n => {
                let path = files[n as usize % files.len()];
                if let Ok(file) = fs.open(path, OpenOptions::new().read(true)) {
                    if n % 2 == 0 { file.sync_all() } else { file.sync_data() }.unwrap();
                }
            }
        }
    }
}

/// Returns what was promised to a program by an instant.
fn turns(crash: &Crash<'_>, name: &str) -> Turns {
    let mut turns = Turns::default();
    for mark in crash.marks() {
        let mut words = mark.split(' ');
        if words.next() == Some(name) {
            let what = words.next();
            let k = words.next().and_then(|k| k.parse().ok()).expect("a number");
            match what {
                Some("begun") => turns.begun = k,
                _ => turns.durable = k,
            }
        }
    }
    turns
}

fn run(fs: &Fs, program: &Program, most: u64, recorder: &Recorder) {
    for k in 1..=most {
        recorder.mark(format!("{} begun {k}", program.name));
        if (program.turn)(fs, k) {
            recorder.mark(format!("{} durable {k}", program.name));
        }
    }
}

fn programs_find_what_they_were_promised(most: u64, instants: u64, seed: u64) {
    let recorded = Recorded::new(128, |fs| PROGRAMS.iter().for_each(|p| (p.begins)(fs)));
    let (fs, recorder) = (&recorded.fs, recorded.device.recorder());
    let running = AtomicUsize::new(PROGRAMS.len());
    std::thread::scope(|s| {
        for program in &PROGRAMS {
            let running = &running;
            s.spawn(move || {
                run(fs, program, most, recorder);
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for n in 0..2 {
            let running = &running;
            s.spawn(move || meddle(fs, seed * 2 + n, running));
        }
    });
    recorded.look(instants, seed, |found, crash| {
        PROGRAMS.iter().try_for_each(|program| {
            let check = (program.check)(found, turns(crash, program.name));
            check.map_err(|e| format!("{}: {e}", program.name))
        })
    });
}

#[test]
fn programs_beside_each_other_find_what_they_were_promised_at_any_instant() {
    for seed in 0..3 {
        programs_find_what_they_were_promised(100, 40, seed);
    }
}

#[test]
#[ignore = "minutes: see docs/TESTING.md"]
fn programs_beside_each_other_find_what_they_were_promised_for_long() {
    for seed in 3..100 {
        programs_find_what_they_were_promised(200, 60, seed);
    }
}
