//! Volumes with two copies of their tree: one copy of every block of it is damaged in turn, and
//! costs nothing; then both are, and that is told.

use crate::common::*;
use lanefs_format::header::{BlockKind, verify_sealed};
use lanefs_store::device::{Fault, FaultyDevice, Kind, MemoryDevice, MemoryImage, Plan, When};
use lanefs_store::fsck::{self, FsckOptions};
use lanefs_store::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const FILES: u64 = 60;
const FIRST: u64 = 1000;

fn name(n: u64) -> Vec<u8> {
    format!("{n:0>180}").into_bytes()
}

struct Volume {
    images: Vec<Arc<MemoryImage>>,
    segment: u64,
}

/// What can be read of a volume: each file's attributes and the first bytes of its pages.
type Content = BTreeMap<Vec<u8>, (usize, Vec<Option<u64>>)>;

fn options(read_only: bool) -> OpenOptions {
    OpenOptions { read_only, cache_bytes: 0, memory_bytes: 1 << 12, threads: 1, ..OpenOptions::default() }
}

impl Volume {
    /// Directory buckets, maps with nodes, attributes in blocks of their own, an orphan, summaries.
    /// Closed, or with a log to replay.
    fn new(sizes: &[u64], segment_blocks: u32, closed: bool) -> Volume {
        let devices: Vec<Arc<MemoryDevice>> =
            sizes.iter().map(|s| Arc::new(MemoryDevice::new(*s).unwrap())).collect();
        let dd: Vec<Dev> = devices.iter().map(|d| d.clone() as Dev).collect();
        let o = FormatOptions { segment_blocks, metadata_copies: 2, ..format_options() };
        Store::format(&dd, &o).unwrap();
        let (s, _) = open_all(&dd);
        assert_eq!(s.info().metadata_copies, 2);
        let segment = u64::from(s.info().segment_blocks);
        let mut e = s.info().last_epoch + 1;
        for some in (0..FILES).collect::<Vec<_>>().chunks(20) {
            let names: Vec<_> = some.iter().map(|n| (*n, name(*n))).collect();
            let births = names
                .iter()
                .map(|(n, name)| group(e, n + 1, &[new_file(FIRST + n), set(name, FIRST + n, 0)]));
            fold(&s, e, births.collect());
            e += 1;
        }
        for n in 0..FILES {
            // More than an inode block maps, with gaps.
            let pages = if n == 7 { 300 } else { n % 4 };
            let pages: Vec<_> = (0..pages).map(|p| (p * 3, page(n * 1000 + p))).collect();
            let size = pages.last().map_or(0, |p| (p.0 + 1) * 4096);
            let mut u = update(FIRST + n, size, pages);
            u.xattrs = (n == 9).then(|| vec![7; 9000]);
            s.submit(tx(n % 9 == 0, Vec::new(), vec![u])).unwrap();
        }
        let last = name(FILES - 1);
        fold(&s, e, vec![group(e, 1, &[clr(&last, FIRST + FILES - 1)])]);
        if closed {
            s.close().unwrap();
        } else {
            let born = group(e + 1, 2, &[new_file(5000), set(b"late", 5000, 0)]);
            let u = update(5000, 8192, vec![(0, page(1)), (1, page(2))]);
            s.submit(tx(true, born, vec![u])).unwrap();
            s.submit(tx(true, Vec::new(), vec![update(FIRST + 7, 8192, vec![(1, page(3))])])).unwrap();
            s.shutdown();
        }
        let images = devices.iter().map(|d| MemoryImage::capture(&**d).unwrap()).collect();
        Volume { images, segment }
    }

    fn fork(&self) -> Vec<Arc<MemoryDevice>> {
        self.images.iter().map(|i| Arc::new(i.fork().unwrap())).collect()
    }

    /// Every block that was written as one of the tree, if it has its copy still: device and
    /// number.
    fn blocks(&self) -> Vec<(usize, u64, BlockKind)> {
        let half = self.segment / 2;
        let mut out = Vec::new();
        for (d, m) in self.fork().iter().enumerate() {
            let bytes = m.to_vec();
            let block =
                |n: u64| bytes.get(n as usize * BLOCK_SIZE..).and_then(|b| b.first_chunk::<BLOCK_SIZE>());
            for n in (0..bytes.len() as u64 / BLOCK_SIZE as u64).filter(|n| n % self.segment < half) {
                let (Some(a), Some(b)) = (block(n), block(n + half)) else { continue };
                if let Some((kind, _)) = verify_sealed(&Block(*a), BlockAddr::new(d as u8, n))
                    && !matches!(kind, BlockKind::Batch | BlockKind::Chain)
                    && a == b
                {
                    out.push((d, n, kind));
                }
            }
        }
        out
    }
}

fn as_devices(d: &[Arc<MemoryDevice>]) -> Vec<Dev> {
    d.iter().map(|d| d.clone() as Dev).collect()
}

fn content(s: &Store) -> Result<Content> {
    let (mut at, mut out) = (0, Content::new());
    loop {
        let b = s.load_bucket(ROOT_INO, at)?;
        for e in &b.entries {
            let Some(i) = s.load_inode(e.ino)? else { continue };
            let mut pages = Vec::new();
            for p in 0..i.attrs.size.div_ceil(4096) {
                let mut block = Block::zeroed();
                let mut reads = [PageRead { block: &mut block, hole: false }];
                s.read_pages(e.ino, p, &mut reads)?;
                let hole = reads[0].hole;
                pages.push((!hole).then(|| u64::from_le_bytes(*block.0.first_chunk().unwrap())));
            }
            out.insert(e.name.to_vec(), (i.xattrs.len(), pages));
        }
        if b.high >= lanefs_format::dir_bucket::COOKIE_MAX {
            return Ok(out);
        }
        at = b.high + 1;
    }
}

/// Damaged and repaired.
fn scrub(s: &Store) -> Result<(Vec<ScrubDamage>, Vec<ScrubDamage>)> {
    let (mut at, mut all) = (ScrubCursor::default(), (Vec::new(), Vec::new()));
    loop {
        let step = s.scrub(at, 64)?;
        all.0.extend(step.damage);
        all.1.extend(step.repaired);
        match step.next {
            Some(next) => at = next,
            None => return Ok(all),
        }
    }
}

fn check(d: &[Dev], repair: bool) -> fsck::FsckReport {
    let o = FsckOptions { repair, threads: 1, ..FsckOptions::default() };
    fsck::check(d.to_vec(), &o, &|_| ()).unwrap()
}

fn spoil(d: &MemoryDevice, block: u64, how: usize) {
    let at = block * BLOCK_SIZE as u64;
    if how == 0 {
        let mut b = [0];
        d.peek(at + 1000, &mut b).unwrap();
        d.poke(at + 1000, &[b[0] ^ 4]).unwrap();
    } else {
        d.poke(at, &[0; BLOCK_SIZE]).unwrap();
    }
}

/// Opens, reads and scrubs a volume of which one copy is bad, and once more when it should be
/// repaired.
fn costs_nothing(d: &[Dev], sound: &Content, context: &str) {
    let (s, _) = Store::open(d.to_vec(), &options(false)).unwrap_or_else(|e| panic!("{context}: {e}"));
    assert!(content(&s).unwrap_or_else(|e| panic!("{context}: {e}")) == *sound, "{context}");
    let (damage, _) = scrub(&s).unwrap();
    assert_eq!(damage, [], "{context}");
    assert!(s.healthy().is_ok());
    // What could not be written in place is written anew.
    let none = FoldInput { epoch: s.folded_epoch(), groups: Vec::new() };
    s.checkpoint(|| Ok(none)).unwrap();
    assert_eq!(scrub(&s).unwrap(), (Vec::new(), Vec::new()), "{context}, repaired");
    assert_eq!(s.audit().unwrap().problems, Vec::<String>::new(), "{context}");
    s.close().unwrap();
    drop(s);
    let (s, _) = Store::open(d.to_vec(), &options(true)).unwrap();
    assert!(content(&s).unwrap() == *sound, "{context}, opened again");
    assert_eq!(scrub(&s).unwrap(), (Vec::new(), Vec::new()), "{context}, opened again");
}

fn every_block_of(v: &Volume, step: usize) -> BTreeSet<u8> {
    let sound = {
        let (s, _) = Store::open(as_devices(&v.fork()), &options(true)).unwrap();
        assert_eq!(scrub(&s).unwrap(), (Vec::new(), Vec::new()));
        content(&s).unwrap()
    };
    assert!(sound.len() as u64 >= FILES - 1);
    assert_eq!(check(&as_devices(&v.fork()), false).problems, []);
    let half = v.segment / 2;
    let mut kinds = BTreeSet::new();
    let (mut used, mut told) = (0, 0);
    for (n, &(dev, block, kind)) in v.blocks().iter().enumerate().step_by(step) {
        let first_bad = n % 2 == 0;
        let at = if first_bad { block } else { block + half };
        let how = n / 2 % 2;
        let context = format!("{kind:?} at {dev}:{block}, block {at}, way {how}");
        // Whether it is in use is what a look at it says that writes nothing.
        let d = v.fork();
        spoil(&d[dev], at, how);
        let (s, _) = Store::open(as_devices(&d), &options(true)).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert!(content(&s).unwrap() == sound, "{context}");
        // A node that several steps meet is told by each.
        let (damage, _) = scrub(&s).unwrap();
        assert!(damage.iter().all(|d| d.block == at && d.what.contains("one of two copies")), "{context}");
        drop(s);
        if damage.is_empty() {
            continue;
        }
        used += 1;
        kinds.insert(kind as u8);
        costs_nothing(&as_devices(&d), &sound, &context);
        // A check names it and writes nothing; a repair heals.
        let d = v.fork();
        spoil(&d[dev], at, how);
        let before = d[dev].to_vec();
        let dry = check(&as_devices(&d), false);
        assert!(before == d[dev].to_vec());
        let bad: Vec<_> = dry.problems.iter().map(|p| (&p.structure, &p.what)).collect();
        assert_eq!(dry.metadata_copies, 2);
        let belongs = damage[0].ino.0;
        assert!(
            bad.len() == 1 && bad[0].1.contains("one of two copies") && dry.problems[0].inode == belongs,
            "{context}: {bad:?}, of inode {belongs}"
        );
        assert_eq!(check(&as_devices(&d), true).left(), 0, "{context}");
        assert_eq!(check(&as_devices(&d), false).problems, [], "{context}");
        let (s, _) = Store::open(as_devices(&d), &options(true)).unwrap();
        assert!(content(&s).unwrap() == sound, "{context}, repaired");
        drop(s);
        // The device does not read it, whatever is written there.
        let unread = |times: u64| -> Vec<Dev> {
            let range = Some(at * BLOCK_SIZE as u64..(at + 1) * BLOCK_SIZE as u64);
            let when = When { range, times, ..When::default() };
            let plan = Plan::none().rule(Kind::Read, when, Fault::Error(libc::EIO));
            let d = v.fork().into_iter().enumerate().map(|(i, d)| -> Dev {
                Arc::new(FaultyDevice::new(d, if i == dev { plan.clone() } else { Plan::none() }))
            });
            d.collect()
        };
        if n % 3 == 0 {
            let d = unread(0);
            costs_nothing(&d, &sound, &format!("{context}, unreadable"));
            let d = unread(0);
            let o = FsckOptions { repair: true, threads: 1, ..FsckOptions::default() };
            let r = fsck::check(d, &o, &|_| ()).unwrap_or_else(|e| panic!("{context}, unreadable: {e}"));
            assert_eq!(r.left(), 0, "{context}, unreadable: {:?}", r.problems);
        }
        // Both.
        let d = v.fork();
        spoil(&d[dev], block, how);
        spoil(&d[dev], block + half, how);
        match Store::open(as_devices(&d), &options(true)) {
            Err(e) => assert!(e.to_string().contains("block"), "{context}, both: {e}"),
            Ok((s, _)) => {
                let (damage, repaired) = scrub(&s).unwrap();
                assert!(!damage.is_empty() && repaired.is_empty(), "{context}, both");
                assert!(damage.iter().any(|d| d.block == block || d.block == 0), "{context}: {damage:?}");
            }
        }
        told += usize::from(!check(&as_devices(&d), false).problems.is_empty());
    }
    println!("{used} blocks in use of kinds {kinds:?}, {told} told with both bad");
    assert!(used > 25 / step, "{used}");
    assert_eq!(told, used);
    kinds
}

#[test]
fn one_bad_copy_of_any_block_of_a_closed_volume_costs_nothing() {
    let v = Volume::new(&[6 << 20], 16, true);
    let kinds = every_block_of(&v, 1);
    let all = [
        BlockKind::Inode,
        BlockKind::Pack,
        BlockKind::Map,
        BlockKind::Table,
        BlockKind::Bucket,
        BlockKind::Xattr,
        BlockKind::Usage,
        BlockKind::Orphans,
        BlockKind::Summary,
    ];
    for k in all {
        assert!(kinds.contains(&(k as u8)), "{k:?} is not among {kinds:?}");
    }
}

#[test]
fn one_bad_copy_of_any_block_of_a_volume_with_a_log_costs_nothing() {
    every_block_of(&Volume::new(&[6 << 20], 32, false), 2);
}

#[test]
fn one_bad_copy_of_any_block_of_a_volume_of_two_devices_costs_nothing() {
    every_block_of(&Volume::new(&[3 << 20, 4 << 20], 64, true), 3);
}
