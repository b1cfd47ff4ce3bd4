//! A repair may not lose what can be read. The tests run on whole volumes, and look at the name
//! space as programs see it.

use lanefs::{Cred, FileKind, Fs, NodeEntry, OpenOptions, Volume};
use lanefs_lab_crash::crash::image::{BLOCK, CowDevice, Image};
use lanefs_lab_crash::crash::states::apply_whole;
use lanefs_lab_crash::crash::system::{LaneFs, System};
use lanefs_lab_crash::fuzz::seeds::mount;
use lanefs_lab_crash::power::crashed;
use lanefs_lab_model::generate::Rng;
use lanefs_store::device::{Crash, Device, Recorder};
use lanefs_store::fsck::{self, FsckOptions, FsckReport};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The content of a file: `None` if it cannot be read.
type Content = Option<Vec<u8>>;
/// Path to inode number and content; directories and links have the content of their kind.
type Tree = BTreeMap<PathBuf, (u64, Content)>;

fn device(image: &Image) -> Vec<Arc<dyn Device>> {
    vec![Arc::new(CowDevice::new(image.clone()))]
}

fn content(fs: &Fs, path: &Path, kind: FileKind) -> Content {
    let names = fs.listxattr(path).ok()?;
    let mut all: Vec<u8> = Vec::new();
    for n in names {
        all.extend(fs.getxattr(path, &n).ok()?);
    }
    match kind {
        FileKind::File => all.extend(fs.read(path).ok()?),
        FileKind::Symlink => all.extend(fs.readlink(path).ok()?),
        _ => {}
    }
    Some(all)
}

/// Everything that can be reached.
fn tree(fs: &Fs) -> Tree {
    let mut out = Tree::new();
    let mut todo = vec![PathBuf::from("/")];
    while let Some(path) = todo.pop() {
        let Ok(stat) = fs.lstat(path.as_path()) else { continue };
        out.insert(path.clone(), (stat.ino.0, content(fs, &path, stat.kind)));
        if stat.kind == FileKind::Dir {
            let _ = fs.read_dir_from(path.as_path(), 0, &mut |e: NodeEntry<'_>| {
                if e.name != b"." && e.name != b".." {
                    use std::os::unix::ffi::OsStrExt;
                    todo.push(path.join(std::ffi::OsStr::from_bytes(e.name)));
                }
                true
            });
        }
    }
    out
}

fn look(devices: Vec<Arc<dyn Device>>) -> Result<Tree, String> {
    let v = Volume::open_devices(devices, &mount(true)).map_err(|e| e.to_string())?;
    let t = tree(&v.as_user(Cred::root()));
    v.shutdown();
    Ok(t)
}

fn check(devices: Vec<Arc<dyn Device>>, repair: bool) -> FsckReport {
    let o = FsckOptions { repair, read_data: true, threads: 1, ..FsckOptions::default() };
    fsck::check(devices, &o, &|_| ()).unwrap()
}

/// A volume of `blocks` with `files` files in directories of many sizes: some only in the tree of a
/// checkpoint, some in epochs that were committed since, some in fsyncs behind these; left as a
/// crash leaves it.
fn volume(blocks: usize, files: usize, segment_blocks: u32) -> Image {
    let mut system = LaneFs::default();
    system.format.segment_blocks = segment_blocks;
    let device = Arc::new(CowDevice::new(Image::zeros(blocks)));
    let all: Vec<Arc<dyn Device>> = vec![device.clone()];
    system.format(&all).unwrap();
    let v = Volume::open_devices(all, &mount(false)).unwrap();
    let fs = v.as_user(Cred::root());
    for d in 0..20 {
        fs.mkdir(format!("/d{d}").as_str(), 0o755).unwrap();
    }
    let write = |n: usize| {
        let path = format!("/d{}/file {n}", n * n % 20);
        let f = fs.open(path.as_str(), OpenOptions::new().write(true).create(true)).unwrap();
        f.write_all_at(&vec![n as u8; n % 40 * if n.is_multiple_of(50) { 900 } else { 7 }], 0).unwrap();
        f
    };
    for n in 0..files / 2 {
        drop(write(n));
    }
    v.checkpoint().unwrap();
    for n in files / 2..files * 9 / 10 {
        drop(write(n));
        if n.is_multiple_of(7) {
            fs.unlink(format!("/d{}/file {}", (n / 3) * (n / 3) % 20, n / 3).as_str()).ok();
        }
    }
    fs.rename("/d3", "/d4/moved").unwrap();
    fs.setxattr("/d4", b"user.a", &[7; 300], 0).unwrap();
    v.sync().unwrap();
    for n in files * 9 / 10..files {
        write_durably(write(n));
    }
    let late = fs.open("/d1/file 1", OpenOptions::new().write(true)).unwrap();
    late.write_all_at(&[0x77; 9000], 0).unwrap();
    late.sync_all().unwrap();
    v.shutdown();
    drop(v);
    device.image()
}

fn write_durably(f: lanefs::File) {
    f.sync_all().unwrap();
}

#[test]
fn with_both_slots_gone_every_committed_file_is_found() {
    for (files, segment) in [(300, 16), (4000, 128)] {
        let mut image = volume(24_000, files, segment);
        let want = look(device(&image)).unwrap();
        assert!(want.len() > files * 8 / 10 && want.values().all(|f| f.1.is_some()));
        for slot in [1, 2, 23_998, 23_999] {
            image.put(slot, &[0; BLOCK], 0xff);
        }
        assert!(look(device(&image)).is_err());
        let d = device(&image);
        let report = check(d.clone(), true);
        assert!(!report.is_clean() && report.left() == 0, "{:#?}", report.problems);
        let got = look(d.clone()).unwrap();
        for (path, f) in &want {
            assert_eq!(got.get(path), Some(f), "{} after {:#?}", path.display(), report.problems);
        }
        assert_eq!(got.len(), want.len(), "something came back: {:#?}", report.problems);
        let again = check(d, false);
        assert!(again.is_clean(), "{:#?}", again.problems);
    }
}

/// Damages the image so that the checksums show it.
fn damage(image: &mut Image, blocks: usize, rng: &mut Rng) {
    for _ in 0..1 + rng.below(8) {
        let start = rng.below(blocks as u64 / 2) as usize;
        // What is not used cannot be damaged.
        let used = |at: &usize| image.block(*at).iter().any(|b| *b != 0);
        let Some(at) = (start..blocks).find(used) else { continue };
        let mut b = *image.block(at);
        match rng.below(3) {
            0 => b[rng.below(BLOCK as u64) as usize] ^= 1 << rng.below(8),
            1 => b.fill(0),
            _ => b[512..1024].fill(rng.bits() as u8),
        }
        image.put(at, &b, 0xff);
    }
}

/// Checks that everything that could be read before can be read now, where it was or in lost+found.
fn nothing_lost(before: &Tree, after: &Tree, what: &str) {
    for (path, (ino, content)) in before.iter().filter(|f| f.1.1.is_some()) {
        let found = after.get(path).filter(|f| f.0 == *ino).or_else(|| {
            let home = Path::new("/lost+found").join(format!("inode-{ino}"));
            let below = |p: &Path| p.starts_with("/lost+found");
            after.get(&home).or_else(|| after.iter().find(|f| f.1.0 == *ino && below(f.0)).map(|f| f.1))
        });
        let Some(found) = found else { panic!("{what}: {} ({ino}) is gone", path.display()) };
        assert!(found.1 == *content, "{what}: {} has other bytes", path.display());
    }
}

#[test]
fn a_repair_never_makes_a_good_file_worse() {
    let rounds = std::env::var("LANEFS_CASES").ok().and_then(|s| s.parse().ok()).unwrap_or(60);
    let blocks = 3000;
    let whole = volume(blocks, 600, 16);
    let (mut tried, mut damaged) = (0, 0);
    for seed in 0..rounds {
        let mut rng = Rng::new(seed);
        let mut image = whole.clone();
        damage(&mut image, blocks, &mut rng);
        let Ok(before) = look(device(&image)) else { continue };
        tried += 1;
        let d = device(&image);
        let report = check(d.clone(), true);
        damaged += u64::from(!report.is_clean());
        let after = look(d).unwrap_or_else(|e| panic!("seed {seed}: the repaired volume does not open: {e}"));
        nothing_lost(&before, &after, &format!("seed {seed}: {:#?}", report.problems));
    }
    assert!(tried > rounds / 3 && damaged > rounds / 6, "{tried} opened, {damaged} were damaged");
}

#[test]
fn a_power_loss_at_any_write_of_a_repair_loses_nothing() {
    let rounds = std::env::var("LANEFS_CASES").ok().and_then(|s| s.parse().ok()).unwrap_or(12);
    let blocks = 1500;
    let whole = volume(blocks, 200, 16);
    let mut crashes = 0;
    for seed in 0..rounds {
        let mut rng = Rng::new(seed ^ 0xdead);
        let mut image = whole.clone();
        damage(&mut image, blocks, &mut rng);
        if rng.one_in(3) {
            image.put(1, &[0; BLOCK], 0xff);
            image.put(2, &[0; BLOCK], 0xff);
        }
        let first = device(&image);
        check(first.clone(), true);
        let Ok(good) = look(first) else { continue };
        let recorder = Recorder::new();
        let recorded: Vec<Arc<dyn Device>> = vec![Arc::new(recorder.wrap(CowDevice::new(image.clone())))];
        check(recorded, true);
        let log = recorder.log();
        // After each event, whatever it left on the medium.
        let step = (log.now / 24).max(1);
        for at in (0..=log.now).step_by(step as usize) {
            let (half, how) = crashed(&log, &image, at, &mut rng);
            crashes += 1;
            let d = device(&half);
            let report = check(d.clone(), true);
            let after = look(d.clone()).unwrap_or_else(|e| panic!("seed {seed} at {at}: does not open: {e}"));
            let what =
                format!("seed {seed}, power loss at {at} of {}, {how}: {:#?}", log.now, report.problems);
            nothing_lost(&good, &after, &what);
            let again = check(d, false);
            assert!(again.problems.iter().all(|p| !p.repairable), "{what}: then {:#?}", again.problems);
        }
    }
    assert!(crashes > rounds * 5, "{crashes}");
}

/// The power goes in the middle of a checkpoint, and with it both slots. What the checkpoint had
/// written by then counts as folded, so changes of the epochs that it was folding may be lost; a
/// file that is found is whole, and what nobody changed since the checkpoint before is all there.
#[test]
fn slots_lost_in_the_middle_of_a_checkpoint_cost_only_what_it_was_folding() {
    let rounds = std::env::var("LANEFS_CASES").ok().and_then(|s| s.parse().ok()).unwrap_or(60);
    let blocks = 3000;
    let system = LaneFs::default();
    let fresh = Arc::new(CowDevice::new(Image::zeros(blocks)));
    system.format(&[fresh.clone() as Arc<dyn Device>]).unwrap();
    let base = fresh.image();
    let recorder = Recorder::new();
    let recorded: Arc<dyn Device> = Arc::new(recorder.wrap(CowDevice::new(base.clone())));
    let v = Volume::open_devices(vec![recorded], &mount(false)).unwrap();
    let fs = v.as_user(Cred::root());
    let write = |path: &str, n: usize| {
        let f = fs.open(path, OpenOptions::new().write(true).create(true)).unwrap();
        f.write_all_at(&vec![n as u8; n % 9 * 1500], 0).unwrap();
    };
    for n in 0..200 {
        if n < 10 {
            fs.mkdir(format!("/old{n}").as_str(), 0o755).unwrap();
            fs.mkdir(format!("/changed{n}").as_str(), 0o755).unwrap();
        }
        write(&format!("/old{}/{n}", n % 10), n);
        write(&format!("/changed{}/{n}", n % 10), n);
    }
    v.checkpoint().unwrap();
    for n in 0..100 {
        write(&format!("/changed{}/new {n}", n % 10), n + 3);
        fs.unlink(format!("/changed{}/{n}", n % 10).as_str()).unwrap();
        fs.mkdir(format!("/changed{}/dir {n}", n % 10).as_str(), 0o755).unwrap();
    }
    fs.rename("/changed3/dir 3", "/changed4/moved").unwrap();
    v.sync().unwrap();
    let from = recorder.mark("");
    v.checkpoint().unwrap();
    let to = recorder.mark("");
    v.shutdown();
    let log = recorder.log();
    let mut whole = [base.clone()];
    apply_whole(&log, Crash::new(&log, from).durable(), &mut whole);
    let want = look(device(&whole[0])).unwrap();
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..rounds {
        let mut rng = Rng::new(seed);
        let at = from + seed * (to - from) / rounds;
        let (mut image, how) = crashed(&log, &base, at, &mut rng);
        for slot in [1, 2, blocks - 2, blocks - 1] {
            image.put(slot, &[0; BLOCK], 0xff);
        }
        let d = device(&image);
        let report = check(d.clone(), true);
        let what = format!("at {at} of {from} to {to}, {how}: {:#?}", report.problems);
        let after = look(d.clone()).unwrap_or_else(|e| panic!("{what}: does not open: {e}"));
        for (path, f) in &want {
            match after.get(path) {
                _ if path.starts_with("/old") => {
                    assert_eq!(after.get(path), Some(f), "{what}: {}", path.display())
                }
                Some(found) if found.0 == f.0 => {
                    assert_eq!(found, f, "{what}: {}", path.display());
                    kept += 1;
                }
                _ => lost += 1,
            }
        }
        let again = check(d, false);
        assert!(again.is_clean(), "{what}: then {:#?}", again.problems);
    }
    assert!(kept > lost, "{kept} kept, {lost} lost");
}
