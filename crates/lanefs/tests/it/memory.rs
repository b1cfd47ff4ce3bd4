//! Running within a budget.

use crate::ahead::recorded;
use crate::{ls, volume};
use lanefs::{Cred, MountOptions, OpenOptions, Volume};
use lanefs_store::device::Payload;
use std::collections::HashMap;

#[test]
fn more_files_than_fit_in_the_cache_are_all_there() {
    let (v, dev) = volume(512);
    v.close().unwrap();
    drop(v);
    let options = MountOptions { cache_size: 8 << 20, background: true, ..crate::options() };
    let v = Volume::open_devices(vec![dev], &options).unwrap();
    let fs = v.as_user(Cred::root());
    let n = 30_000;
    for d in 0..30 {
        fs.mkdir(&*format!("/d{d}"), 0o755).unwrap();
    }
    for i in 0..n {
        fs.write(&*format!("/d{}/f{i}", i % 30), format!("content of {i}").as_bytes()).unwrap();
    }
    for i in (0..n).step_by(37) {
        assert_eq!(fs.read(&*format!("/d{}/f{i}", i % 30)).unwrap(), format!("content of {i}").as_bytes());
    }
    for d in 0..30 {
        assert_eq!(ls(&fs, &format!("/d{d}")).len(), n / 30);
    }
    v.sync().unwrap();
    for i in 0..n {
        fs.unlink(&*format!("/d{}/f{i}", i % 30)).unwrap();
    }
    for d in 0..30 {
        fs.rmdir(&*format!("/d{d}")).unwrap();
    }
    assert!(ls(&fs, "/").is_empty());
}

/// A write learnt only at its end that the file was dirty: until then nobody could write its pages
/// back, so one that was larger than the page cache waited for frames in vain and came back short.
#[test]
fn one_write_may_be_larger_than_the_page_cache() {
    let (v, dev) = volume(64);
    v.close().unwrap();
    drop(v);
    let options = MountOptions { cache_size: 4 << 20, ..crate::options() };
    let v = Volume::open_devices(vec![dev], &options).unwrap();
    let file = v.as_user(Cred::root()).create("/large").unwrap();
    let data: Vec<u8> = (0..12u32 << 20).map(|i| (i >> 8) as u8).collect();
    // Not at the start of a page.
    assert_eq!(file.write_at(&data, 100).unwrap(), data.len());
    let mut read = vec![0; data.len()];
    file.read_exact_at(&mut read, 100).unwrap();
    assert!(read == data);
}

/// Every page of a file full of holes lies in a leaf of its own of the file's map; a leaf took 3
/// KiB, whatever was in it, and nobody counted them.
#[test]
fn a_file_of_islands_costs_memory_by_its_islands() {
    let (v, dev) = volume(512);
    let file = v.as_user(Cred::root()).create("/islands").unwrap();
    let before = v.memory();
    const ISLANDS: u64 = 4000;
    for i in 0..ISLANDS {
        file.write_at(&i.to_le_bytes(), i * (4 << 20)).unwrap();
    }
    file.sync_all().unwrap();
    let each = (v.memory() - before) / ISLANDS;
    assert!((50..700).contains(&each), "{each} bytes for an island");
    v.tick().unwrap();
    let mut read = [0; 8];
    for i in 0..ISLANDS {
        file.read_exact_at(&mut read, i * (4 << 20)).unwrap();
        assert_eq!(u64::from_le_bytes(read), i);
    }
    drop(file);
    v.close().unwrap();
    drop(v);
    // The check reads such a map without holding all of it; it threw away what it had just read,
    // for ever, from the 512th node on.
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        tell.send(lanefs_store::fsck::check(vec![dev], &Default::default(), &|_| {}).unwrap().is_clean())
    });
    assert_eq!(told.recv_timeout(std::time::Duration::from_secs(120)), Ok(true));
}

/// A checkpoint kept all nodes of a file's map until the last was made: 200 MiB for 50,000 islands.
#[test]
fn a_checkpoint_writes_a_large_map_in_portions() {
    const ISLANDS: u64 = 3000;
    let (fs, dev) = recorded(&crate::options());
    let file = fs.create("/islands").unwrap();
    for i in 0..ISLANDS {
        file.write_at(&i.to_le_bytes(), i * (4 << 20)).unwrap();
        if i % 500 == 0 {
            file.sync_all().unwrap();
        }
    }
    file.sync_all().unwrap();
    let before = dev.recorder().log().writes.len();
    fs.volume().tick().unwrap();
    let mut submissions = HashMap::new();
    for w in &dev.recorder().log().writes[before..] {
        if let Payload::Bytes(bytes) = &w.payload {
            *submissions.entry(w.issued).or_insert(0) += bytes.len();
        }
    }
    let most = *submissions.values().max().unwrap();
    assert!((100 << 10..4 << 20).contains(&most), "{most} bytes at once of {ISLANDS} nodes");
    drop(file);
    fs.volume().close().unwrap();
    drop(fs);
    assert!(lanefs_store::fsck::check(vec![dev.clone()], &Default::default(), &|_| {}).unwrap().is_clean());
    let fs = Volume::open_devices(vec![dev], &crate::options()).unwrap().as_user(Cred::root());
    let file = fs.open("/islands", OpenOptions::new().read(true)).unwrap();
    let mut read = [0; 8];
    for i in 0..ISLANDS {
        file.read_exact_at(&mut read, i * (4 << 20)).unwrap();
        assert_eq!(u64::from_le_bytes(read), i);
    }
}

#[test]
fn names_that_were_listed_are_counted_and_let_go() {
    let (v, dev) = volume(512);
    let fs = v.as_user(Cred::root());
    for d in 0..20 {
        fs.mkdir(&*format!("/d{d}"), 0o755).unwrap();
        for i in 0..1000 {
            fs.write(&*format!("/d{d}/a-name-of-some-length-{i}"), b"").unwrap();
        }
    }
    v.close().unwrap();
    drop((fs, v));
    let v = Volume::open_devices(vec![dev], &MountOptions { background: false, ..crate::options() }).unwrap();
    let fs = v.as_user(Cred::root());
    let before = v.memory();
    for d in 0..20 {
        assert_eq!(ls(&fs, &format!("/d{d}")).len(), 1000);
    }
    let listed = v.memory() - before;
    assert!(listed > 20_000 * 100, "{listed} bytes for 20,000 names");
}
