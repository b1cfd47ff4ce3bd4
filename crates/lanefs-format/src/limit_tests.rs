//! Numbers that no volume can have are refused where they are decoded.
//!
//! The story: fuzzed images with an epoch, a timestamp, a version or a sequence near 2^64
//! overflowed sums far away from the decoder: with assertions a panic, without them epochs that
//! began again at 0; and sizes above 2^63 - 1 reached pages that memory has no place for.

use super::batch::{self, BatchHead, BatchKind, ChainLink, Context, InodeRecord, TailUpdate};
use super::header::{BlockKind, Stamp, expect_header, put_header, seal, verify_sealed};
use super::inode::{self, MapImage};
use super::prealloc::Prealloc;
use super::record::{self, Effect};
use super::slot::{Position, Slot};
use super::superblock::{MAX_MLOGS, Uuid};
use super::table_node::{self, ENTRIES, TableEntry};
use crate::types::{
    BLOCK_SIZE, Block, BlockAddr, BlockRef, COUNTER_END, Ino, MAX_FILE_SIZE, PAGES_END, Version,
};

const AT: BlockAddr = BlockAddr(77);

/// A number of a structure, and its name.
type Field<T> = (&'static str, fn(&mut T) -> &mut u64);

/// The last number that can be is read, the first that cannot be is refused.
fn bounded(what: &str, end: u64, reads: impl Fn(u64) -> bool) {
    assert!(reads(end - 1), "{what}: {} is refused", end - 1);
    for n in [end, u64::MAX] {
        assert!(!reads(n), "{what}: {n} is read");
    }
}

#[test]
fn slots_with_numbers_that_cannot_be_are_refused() {
    let volume = Uuid([7; 16]);
    let fields: [Field<Slot>; 7] = [
        ("generation", |s| &mut s.generation),
        ("mount", |s| &mut s.mount),
        ("folded_epoch", |s| &mut s.folded_epoch),
        ("last_ts", |s| &mut s.last_ts),
        ("next_seq", |s| &mut s.next_seq),
        ("inodes", |s| &mut s.inodes),
        ("live_blocks", |s| &mut s.live_blocks),
    ];
    bounded("seq", COUNTER_END, |n| {
        let s =
            Slot { volume, positions: vec![Position { seq: n, ..Position::default() }], ..Slot::default() };
        Slot::decode(&s.encode(AT), AT, volume).is_ok()
    });
    for (what, field) in fields {
        bounded(what, COUNTER_END, |n| {
            let mut s = Slot { volume, positions: vec![Position::default()], ..Slot::default() };
            *field(&mut s) = n;
            Slot::decode(&s.encode(AT), AT, volume).is_ok()
        });
    }
}

#[test]
fn headers_with_numbers_that_cannot_be_are_refused() {
    let fields: [Field<Stamp>; 3] =
        [("mount", |s| &mut s.mount), ("epoch", |s| &mut s.epoch), ("sequence", |s| &mut s.sequence)];
    for (what, field) in fields {
        bounded(what, COUNTER_END, |n| {
            let mut stamp = Stamp::default();
            *field(&mut stamp) = n;
            let mut b = Block::zeroed();
            put_header(&mut b, BlockKind::Map, 0, Ino(20), 0);
            seal(&mut b, AT, stamp);
            // Whoever scans and whoever follows a reference agree.
            let sealed = verify_sealed(&b, AT).is_some();
            assert_eq!(expect_header(&b, AT, BlockKind::Map, 0, Ino(20), 0).is_ok(), sealed, "{what} {n}");
            sealed
        });
    }
}

#[test]
fn batches_and_links_with_numbers_that_cannot_be_are_refused() {
    let ctx = Context { mount: 3, seq: 17, secret: 0xfeed };
    let head = BatchHead {
        kind: BatchKind::Commit,
        id: 5,
        epoch: 9,
        previous: 7,
        part: 0,
        parts: 1,
        share: 0,
        shares: 1,
        prior: 0,
        acked: 0,
        slot: 0,
    };
    let fields: [Field<BatchHead>; 3] =
        [("id", |h| &mut h.id), ("epoch", |h| &mut h.epoch), ("previous", |h| &mut h.previous)];
    for (what, field) in fields {
        bounded(what, COUNTER_END, |n| {
            let mut h = head;
            *field(&mut h) = n;
            let mut b = [Block([0; BLOCK_SIZE])];
            batch::encode_batch(&mut b, &h, &[b"groups"], AT, ctx, Stamp::default());
            batch::decode_batch(&b, AT, ctx).is_some()
        });
    }
    bounded("successor", COUNTER_END, |n| {
        let link = ChainLink { successor: BlockAddr(5), successor_seq: n };
        batch::decode_chain(&batch::encode_chain(link, AT, ctx, Stamp::default()), AT, ctx).is_some()
    });
    bounded("mlogs of a share", u64::from(MAX_MLOGS) + 1, |n| {
        let mut out = Vec::new();
        batch::put_share_head(&mut out, &vec![1; n.min(10_000) as usize]);
        batch::decode_share(&out).is_some()
    });
    let mut share = Vec::new();
    batch::put_share_head(&mut share, &[3, 5]);
    share.extend_from_slice(b"groups");
    assert_eq!(batch::decode_share(&share), Some((vec![3, 5], &b"groups"[..])));
    assert!((0..20).all(|cut| batch::decode_share(&share[..cut]).is_none()));
}

#[test]
fn updates_with_numbers_that_cannot_be_are_refused() {
    let read = |change: &dyn Fn(&mut InodeRecord)| {
        let mut r = InodeRecord {
            ino: Ino(20),
            version: 1,
            attrs: inode::tests::sample().attrs,
            xattrs: None,
            tail: TailUpdate::Same,
            unmaps: Vec::new(),
            runs: Vec::new(),
            prealloc: None,
        };
        change(&mut r);
        let mut out = Vec::new();
        batch::put_message_head(&mut out, b"", 1);
        batch::put_inode(&mut out, &r);
        batch::decode_message(&out).is_some()
    };
    bounded("version", COUNTER_END, |n| read(&|r| r.version = n));
    bounded("size", MAX_FILE_SIZE + 1, |n| read(&|r| r.attrs.size = n));
    bounded("page of the tail", PAGES_END, |n| {
        read(&|r| r.tail = TailUpdate::Set { page: n, bytes: vec![1] })
    });
    bounded("end of preallocated pages", PAGES_END + 1, |n| {
        read(&|r| r.prealloc = Some(Prealloc::NONE.with(0..n)))
    });
    bounded("page", PAGES_END, |n| read(&|r| r.push_page(n, BlockRef { addr: BlockAddr(9), crc: 1 })));
}

#[test]
fn inodes_with_numbers_that_cannot_be_are_refused() {
    let read = |change: &dyn Fn(&mut inode::InodeBlock)| {
        let mut i = inode::tests::sample();
        change(&mut i);
        inode::encode(Ino(20), &i).is_some_and(|b| inode::decode(&b, AT, Ino(20)).is_ok())
    };
    bounded("version", COUNTER_END, |n| read(&|i| i.version = n));
    bounded("size", MAX_FILE_SIZE + 1, |n| read(&|i| i.attrs.size = n));
    bounded("page of the tail", PAGES_END, |n| read(&|i| i.tail = Some((n, vec![5; 100]))));
    bounded("page", PAGES_END, |n| {
        read(&|i| {
            i.tail = None;
            i.map = MapImage::Inline(vec![(n, BlockRef { addr: BlockAddr(9), crc: 1 })]);
        })
    });
}

#[test]
fn entries_and_groups_with_numbers_that_cannot_be_are_refused() {
    bounded("epoch of an entry", COUNTER_END, |n| {
        let mut e = [TableEntry::default(); ENTRIES];
        e[3] =
            TableEntry { block: BlockRef { addr: BlockAddr(9), crc: 5 }, slot: 0, generation: 2, epoch: n };
        table_node::decode(&table_node::encode(6, &e), AT, 6).is_ok()
    });
    let read = |v: Version| {
        let mut out = Vec::new();
        record::encode_group(&mut out, v, &[Effect::Dead { ino: Ino(20), generation: 1 }]);
        record::group_at(&out, 0).is_ok()
    };
    bounded("epoch of a group", COUNTER_END, |n| read(Version { epoch: n, ..Version::default() }));
    bounded("timestamp", COUNTER_END, |n| read(Version { ts: n, ..Version::default() }));
}
