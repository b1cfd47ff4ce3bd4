//! The mode, owner and ACLs that an inode is born with are durable with its name. A file that
//! inherits an ACL got its mode and, by calls of their own, its ACLs: a crash between left a file
//! that its group could read by the mode, and that the ACL would have denied.

use lanefs::{Cred, FileKind, Ino, NewInodeAttrs, OpenOptions, Volume};
use lanefs_lab_crash::crash::image::{CowDevice, Image};
use lanefs_lab_crash::crash::states::{Levels, enumerate};
use lanefs_lab_crash::crash::system::{LaneFs, System};
use lanefs_lab_crash::fuzz::seeds::mount;
use lanefs_store::device::{Device, Recorder};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const BOTH: &[(&[u8], &[u8])] = &[(ACCESS, &[7; 60]), (DEFAULT, &[8; 900])];

/// Makes files of every kind in `/d`, and whatever may make their names durable.
fn work(v: &Volume) {
    let (fs, root) = (v.as_user(Cred::root()), Cred::root());
    fs.mkdir("/d", 0o755).unwrap();
    v.sync().unwrap();
    let d = fs.stat("/d").unwrap().ino;
    let file = NewInodeAttrs { mode: 0o640, xattrs: &BOTH[..1] };
    let dir = NewInodeAttrs { mode: 0o750, xattrs: BOTH };
    let create = |name: &[u8]| v.node_create(&root, d, name, file, libc::O_RDWR | libc::O_CREAT).unwrap().1;
    let fsync = |path: &str| fs.open(path, &OpenOptions::new()).unwrap().sync_all().unwrap();
    create(b"of the directory");
    fsync("/d");
    create(b"of itself").sync_data().unwrap();
    v.node_mkdir(&root, d, b"sub", dir).unwrap();
    v.node_mknod(&root, d, b"pipe", NewInodeAttrs { mode: libc::S_IFIFO | 0o640, ..file }, 0).unwrap();
    v.tick().unwrap();
    let (_, unnamed) = v.node_tmpfile(&root, d, file, libc::O_RDWR).unwrap();
    unnamed.write_all_at(&[1; 5000], 0).unwrap();
    fs.link_file(&unnamed, "/d/linked").unwrap();
    v.sync().unwrap();
    // An update that says nothing of attributes reaches the store before the inode is folded.
    let cut = create(b"cut");
    cut.write_all_at(&[2; 9000], 0).unwrap();
    cut.set_len(5000).unwrap();
    v.checkpoint().unwrap();
    create(b"last").write_all_at(&[3; 100], 0).unwrap();
    v.checkpoint().unwrap();
    v.sync().unwrap();
}

#[test]
fn no_crash_leaves_a_file_without_the_attributes_it_was_made_with() {
    let system = LaneFs::default();
    let fresh = Arc::new(CowDevice::new(Image::zeros(1024)));
    system.format(&[fresh.clone() as Arc<dyn Device>]).unwrap();
    let base = [fresh.image()];
    let recorder = Recorder::new();
    let device: Arc<dyn Device> = Arc::new(recorder.wrap(CowDevice::new(base[0].clone())));
    let v = Volume::open_devices(vec![device], &mount(false)).unwrap();
    work(&v);
    v.shutdown();
    let mut seen = HashSet::new();
    let mut found: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    enumerate(&recorder.log(), &base, &[], 0, &Levels::SHORT, &mut |s| {
        if !seen.insert(s.hash()) {
            return true;
        }
        let d: Arc<dyn Device> = Arc::new(CowDevice::new(s.devices[0].clone()));
        let v = Volume::open_devices(vec![d], &mount(false)).unwrap();
        let fs = v.as_user(Cred::root());
        let mut names: Vec<(Vec<u8>, Ino, FileKind)> = Vec::new();
        if fs.stat("/d").is_ok() {
            fs.read_dir_from("/d", 0, &mut |e| {
                names.push((e.name.to_vec(), e.ino, e.kind));
                true
            })
            .unwrap();
        }
        for (name, ino, kind) in names.into_iter().filter(|n| n.0 != b"." && n.0 != b"..") {
            let born = if kind == FileKind::Dir { BOTH } else { &BOTH[..1] };
            for (attribute, value) in born {
                let got = v.node_getxattr(&Cred::root(), ino, attribute);
                let what = || format!("{} at {}, {}", String::from_utf8_lossy(&name), s.at, s.how);
                assert_eq!(got.unwrap_or_else(|e| panic!("{}: {e}", what())), *value, "{}", what());
            }
            *found.entry(name).or_default() += 1;
        }
        v.shutdown();
        true
    });
    assert!(found.len() == 7 && found.values().all(|n| *n > 5), "{found:?}");
}
