//! Volumes full of files: what was promised is kept, and what is deleted makes room again.

use crate::{after_crash, reopen, root};
use lanefs::Fs;

/// Empty files until the volume is full; how many.
fn fill(fs: &Fs) -> usize {
    for n in 0.. {
        match fs.create(format!("/f{n}")) {
            Ok(_) => {}
            Err(e) if e.errno() == libc::ENOSPC => return n,
            Err(e) => panic!("f{n}: {e}"),
        }
    }
    unreachable!()
}

/// A removal and what it leads to come in two folds when a checkpoint falls between them.
#[test]
fn a_volume_full_of_files_can_be_emptied() {
    for step in [1, 2, 3, 10] {
        let (fs, dev) = root(32);
        let n = fill(&fs);
        assert!(n > 5000, "{n} files");
        for i in (0..n).filter(|i| i % step == 0) {
            fs.unlink(format!("/f{i}")).unwrap();
        }
        fs.volume().sync().unwrap();
        fs.volume().checkpoint().unwrap();
        let crashed = after_crash(&dev);
        assert_eq!(crashed.stat("/f0").unwrap_err().errno(), libc::ENOENT);
        drop(crashed);
        fs.write("/again", b"x").unwrap();
        let fs = reopen(fs, &dev);
        assert_eq!(fs.read("/again").unwrap(), b"x");
    }
}
