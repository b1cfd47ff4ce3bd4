//! Running within a budget.

use crate::{ls, volume};
use lanefs::{Cred, MountOptions, Volume};

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

/// A write learnt only at its end that the file was dirty: until then nobody could write its pages back, so one that was larger than the
/// page cache waited for frames in vain and came back short.
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
