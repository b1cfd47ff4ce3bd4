//! Content: reading, writing, holes, sizes.

use crate::{errno, reopen, root};
use lanefs::OpenOptions;
use lanefs_sync::random::Rng;

#[test]
fn what_is_written_is_read_across_page_and_file_sizes() {
    let (fs, dev) = root(128);
    let sizes = [0usize, 1, 100, 3399, 3400, 3401, 4095, 4096, 4097, 7500, 8192, 100_000, 3 << 20];
    let content = |n: usize| (0..n).map(|i| (i * 7 + n) as u8).collect::<Vec<u8>>();
    for n in sizes {
        fs.write(&*format!("/f{n}"), content(n)).unwrap();
    }
    let fs = reopen(fs, &dev);
    for n in sizes {
        assert_eq!(fs.read(&*format!("/f{n}")).unwrap(), content(n), "{n} bytes");
        assert_eq!(fs.stat(&*format!("/f{n}")).unwrap().size, n as u64);
    }
}

#[test]
fn sparse_files_reach_to_the_largest_offset() {
    let (fs, dev) = root(64);
    let f = fs.create("/sparse").unwrap();
    let far = i64::MAX as u64 - 100;
    f.write_all_at(b"far", far).unwrap();
    f.write_all_at(b"near", 10 << 20).unwrap();
    assert_eq!(errno(f.write_at(b"x", i64::MAX as u64)), libc::EFBIG);
    let last = fs.create("/last byte").unwrap();
    last.write_all_at(b"x", i64::MAX as u64 - 1).unwrap();
    last.sync_all().unwrap();
    assert_eq!(last.stat().unwrap().size, i64::MAX as u64);
    let check = |f: &lanefs::File| {
        assert_eq!(f.stat().unwrap().size, far + 3);
        assert!(f.stat().unwrap().blocks < 100);
        let mut b = [9; 8];
        f.read_exact_at(&mut b, 5 << 30).unwrap();
        assert_eq!(b, [0; 8]);
        f.read_exact_at(&mut b[..4], 10 << 20).unwrap();
        assert_eq!(&b[..4], b"near");
        assert_eq!(f.lseek(0, libc::SEEK_DATA).unwrap(), 10 << 20);
        assert_eq!(f.lseek(10 << 20, libc::SEEK_HOLE).unwrap(), (10 << 20) + 4096);
        assert_eq!(f.lseek(20 << 20, libc::SEEK_DATA).unwrap(), far & !4095);
        assert_eq!(errno(f.lseek(i64::MAX - 5, libc::SEEK_DATA)), libc::ENXIO);
    };
    check(&f);
    f.sync_all().unwrap();
    check(&f);
    drop(f);
    let fs = reopen(fs, &dev);
    check(&fs.open("/sparse", &OpenOptions::new()).unwrap());
    let mut b = [0];
    let last = fs.open("/last byte", &OpenOptions::new()).unwrap();
    last.read_exact_at(&mut b, i64::MAX as u64 - 1).unwrap();
    assert_eq!(b, *b"x");
}

#[test]
fn truncation_forgets_and_extension_shows_zeros() {
    let (fs, dev) = root(64);
    let f = fs.create("/t").unwrap();
    f.write_all_at(&[5; 20_000], 0).unwrap();
    f.sync_all().unwrap();
    f.set_len(6000).unwrap();
    f.set_len(15_000).unwrap();
    let expect: Vec<u8> = (0..15_000).map(|i| if i < 6000 { 5 } else { 0 }).collect();
    assert_eq!(fs.read("/t").unwrap(), expect);
    drop(f);
    let fs = reopen(fs, &dev);
    assert_eq!(fs.read("/t").unwrap(), expect);
    let f = fs.open("/t", OpenOptions::new().write(true)).unwrap();
    f.allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 1000, 4000).unwrap();
    let expect: Vec<u8> =
        (0..15_000).map(|i| if i < 1000 || (5000..6000).contains(&i) { 5 } else { 0 }).collect();
    assert_eq!(fs.read("/t").unwrap(), expect);
    assert_eq!(errno(f.allocate(libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096)), libc::EOPNOTSUPP);
    drop(f);
    let fs = reopen(fs, &dev);
    assert_eq!(fs.read("/t").unwrap(), expect);
}

#[test]
fn appends_and_the_cursor() {
    let (fs, _d) = root(64);
    let f = fs.open("/log", OpenOptions::new().read(true).append(true).create(true)).unwrap();
    assert_eq!(f.append(b"one").unwrap(), 0);
    assert_eq!(f.write(b"two").unwrap(), 3);
    assert_eq!(f.write_at(b"three", 0).unwrap(), 5, "O_APPEND ignores the offset");
    assert_eq!(f.lseek(0, libc::SEEK_SET).unwrap(), 0);
    let mut b = [0; 16];
    assert_eq!(f.read(&mut b).unwrap(), 11);
    assert_eq!(&b[..11], b"onetwothree");
    assert_eq!(f.read(&mut b).unwrap(), 0);
    assert_eq!(f.lseek(-5, libc::SEEK_END).unwrap(), 6);
    assert_eq!(f.write(b"").unwrap(), 0);
    assert_eq!(f.lseek(0, libc::SEEK_CUR).unwrap(), 6, "a write of nothing moved the cursor");
    let g = fs.create("/copy").unwrap();
    assert_eq!(f.copy_range_to(3, &g, 100, 1000).unwrap(), 8);
    assert_eq!(fs.read("/copy").unwrap()[100..], *b"twothree");
}

/// A copy from the end of a file to a place behind it made the file longer, and went on with the
/// zeros between. The kernel counts what there is to copy when the call begins.
#[test]
fn a_copy_within_a_file_ends_where_the_file_ended() {
    let (fs, _d) = root(64);
    let f = fs.open("/f", OpenOptions::new().read(true).write(true).create(true)).unwrap();
    f.write_all_at(b"0123456789", 0).unwrap();
    assert_eq!(f.copy_range_to(4, &f, 5000, 4000).unwrap(), 6);
    assert_eq!(f.stat().unwrap().size, 5006);
    assert_eq!(fs.read("/f").unwrap()[5000..], *b"456789");
    assert_eq!(f.copy_range_to(6000, &f, 0, 10).unwrap(), 0, "behind the end there is nothing");
    // What reaches into the target only behind the end is no overlap.
    assert_eq!(f.copy_range_to(5003, &f, 5006, 100).unwrap(), 3);
    assert_eq!(fs.read("/f").unwrap()[5000..], *b"456789789");
    let blind = fs.open("/f", OpenOptions::new().write(true)).unwrap();
    assert_eq!(blind.copy_range_to(9999, &f, 0, 1).unwrap_err().errno(), libc::EBADF);
}

#[test]
fn a_full_volume_says_so_at_the_write_and_goes_on_after_a_deletion() {
    let (fs, dev) = root(16);
    let f = fs.create("/fill").unwrap();
    let mut written = 0u64;
    let e = loop {
        match f.write_at(&[1; 65536], written) {
            Ok(0) => break libc::ENOSPC,
            Ok(n) => written += n as u64,
            Err(e) => break e.errno(),
        }
        assert!(written < 16 << 20);
    };
    assert_eq!(e, libc::ENOSPC);
    assert!(written > 8 << 20, "{written} bytes fit");
    f.sync_all().unwrap();
    drop(f);
    let fs = reopen(fs, &dev);
    assert_eq!(fs.stat("/fill").unwrap().size, written);
    fs.unlink("/fill").unwrap();
    fs.write("/next", vec![2; 4 << 20]).unwrap();
    assert_eq!(fs.read("/next").unwrap(), vec![2; 4 << 20]);
}

#[test]
fn endless_overwriting_of_a_nearly_full_volume_never_stops() {
    let (fs, dev) = root(32);
    let size = fs.statfs().unwrap().free * 4096 / 10 * 8;
    let f = fs.create("/data").unwrap();
    let blocks = size / 4096;
    let mut rng = Rng::new(1);
    let mut last = vec![0u8; blocks as usize];
    for i in 0..blocks * 10 {
        let x = rng.bits();
        let b = if i < blocks { i } else { (x >> 33) % blocks };
        let v = (i % 251) as u8;
        f.write_all_at(&[v; 4096], b * 4096).unwrap();
        last[b as usize] = v;
        if i % 500 == 0 {
            f.sync_all().unwrap();
        }
    }
    drop(f);
    let fs = reopen(fs, &dev);
    let f = fs.open("/data", &OpenOptions::new()).unwrap();
    let mut page = [0; 4096];
    for (b, v) in last.iter().enumerate() {
        f.read_exact_at(&mut page, b as u64 * 4096).unwrap();
        assert!(page.iter().all(|p| p == v), "block {b}");
    }
}

/// A range that ends behind the largest file is refused, whatever is to be done with it, and
/// nothing is done.
#[test]
fn no_range_ends_behind_the_largest_file() {
    let (fs, _dev) = root(64);
    let f = fs.create("/f").unwrap();
    f.write_all_at(&[1; 5000], 0).unwrap();
    let (keep, punch, zero) =
        (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE);
    for mode in [0, keep, keep | punch, zero, keep | zero] {
        for (offset, len) in
            [(i64::MAX as u64 - 100, 200), (0, u64::MAX), (u64::MAX, 2), (u64::MAX - 4096, 4097)]
        {
            assert_eq!(errno(f.allocate(mode, offset, len)), libc::EFBIG, "{mode} {offset} {len}");
        }
    }
    assert_eq!(fs.read("/f").unwrap(), [1; 5000]);
    // One that ends with it is not.
    f.allocate(0, i64::MAX as u64 - 100, 100).unwrap();
    assert_eq!(f.stat().unwrap().size, i64::MAX as u64);
}

/// Makes a file longer until nothing more fits; returns how long it is.
fn fill(f: &lanefs::File) -> u64 {
    let (mut written, mut piece) = (f.stat().unwrap().size, 65_536usize);
    while piece >= 4096 {
        match f.write_at(&vec![1; piece], written) {
            Ok(n) if n > 0 => written += n as u64,
            Ok(_) => piece /= 2,
            Err(e) => {
                assert_eq!(e.errno(), libc::ENOSPC);
                piece /= 2;
            }
        }
    }
    written
}

/// Making a file shorter, or a hole in it, gives room back: it succeeds where there is none, also
/// where what is kept of a page has to be written anew.
#[test]
fn a_full_volume_lets_files_be_cut_in_the_middle_of_a_page() {
    let (fs, dev) = root(16);
    let small: Vec<String> = (0..300).map(|n| format!("/small{n}")).collect();
    for path in &small {
        fs.write(&**path, [3; 4096]).unwrap();
    }
    fs.volume().sync().unwrap();
    let (f, rest) = (fs.create("/fill").unwrap(), fs.create("/rest").unwrap());
    let full = fill(&f);
    f.sync_all().unwrap();
    fill(&rest);
    // Of these nothing is given back but the block that is written anew.
    let open = |path: &str| fs.open(path, OpenOptions::new().read(true).write(true)).unwrap();
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    for (n, path) in small.iter().enumerate() {
        match n % 3 {
            0 => open(path).set_len(4000).unwrap(),
            1 => open(path).allocate(punch, 4000, 96).unwrap(),
            _ => open(path).allocate(libc::FALLOC_FL_ZERO_RANGE, 4000, 90).unwrap(),
        }
    }
    fs.volume().sync().unwrap();
    fill(&rest);
    assert_eq!(errno(f.write_at(&[1; 4096], full)), libc::ENOSPC);
    // And of these more than that.
    f.allocate(punch, 100, 9000).unwrap();
    fill(&rest);
    let half = full / 2 + 100;
    f.set_len(half).unwrap();
    f.sync_all().unwrap();
    fs.volume().sync().unwrap();
    drop(f);
    let fs = reopen(fs, &dev);
    let mut want = vec![1; half as usize];
    want[100..9100].fill(0);
    assert!(fs.read("/fill").unwrap() == want);
    for (n, path) in small.iter().enumerate() {
        let mut want = vec![3; if n % 3 == 0 { 4000 } else { 4096 }];
        want[4000..].fill(0);
        if n % 3 == 2 {
            want[4090..].fill(3);
        }
        assert!(fs.read(&**path).unwrap() == want, "{path}");
    }
}

/// A page of a file with holes that had left memory was counted as a new block when it was written
/// over as a whole, until the file was opened anew.
#[test]
fn a_page_of_a_file_with_holes_is_one_block_however_often_it_is_written() {
    let (fs, dev) = crate::root(64);
    let f = fs.create("/f").unwrap();
    f.write_all_at(&[1; 4096], 5 * 4096).unwrap();
    f.sync_all().unwrap();
    drop(f);
    let fs = crate::reopen(fs, &dev);
    let f = fs.open("/f", lanefs::OpenOptions::new().write(true)).unwrap();
    assert_eq!(f.stat().unwrap().blocks, 8);
    f.write_all_at(&[2; 4096], 5 * 4096).unwrap();
    assert_eq!(f.stat().unwrap().blocks, 8);
    f.write_all_at(&[3; 4096], 3 * 4096).unwrap();
    assert_eq!(f.stat().unwrap().blocks, 16, "a hole that is filled");
}

/// All or nothing: what is not in memory is said, and the device is not asked.
#[test]
fn only_what_is_in_memory_is_read_without_waiting() {
    let (fs, dev) = root(128);
    let content: Vec<u8> = (0..50_000).map(|i| (i * 7 % 251) as u8).collect();
    fs.write("/f", &content).unwrap();
    let mut buf = vec![0; 60_000];
    let f = fs.open("/f", &OpenOptions::new()).unwrap();
    assert_eq!(f.read_cached_at(&mut buf, 100).unwrap(), Some(49_900));
    assert!(buf[..49_900] == content[100..]);
    assert_eq!(f.read_cached_at(&mut buf, 50_000).unwrap(), Some(0));
    assert_eq!(f.read_cached_at(&mut buf, u64::MAX).unwrap(), Some(0));
    drop(f);

    let fs = reopen(fs, &dev);
    let f = fs.open("/f", &OpenOptions::new()).unwrap();
    assert_eq!(f.read_cached_at(&mut buf, 0).unwrap(), None);
    let mut one = [0];
    f.read_exact_at(&mut one, 20_000).unwrap();
    assert_eq!(f.read_cached_at(&mut one, 20_001).unwrap(), Some(1));
    assert_eq!(one[0], content[20_001]);
    assert_eq!(f.read_cached_at(&mut buf, 20_001).unwrap(), None, "what follows was not read");
    f.read_to_end_at(&mut Vec::new(), 0).unwrap();
    assert_eq!(f.read_cached_at(&mut buf, 0).unwrap(), Some(50_000));
    assert!(buf[..50_000] == content);
    let f = fs.open("/f", OpenOptions::new().write(true)).unwrap();
    assert_eq!(errno(f.read_cached_at(&mut buf, 0)), libc::EBADF);
}
