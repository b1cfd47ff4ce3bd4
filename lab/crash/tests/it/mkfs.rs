//! The power goes while a volume is made where another one was: what opens then is the old one
//! whole, or the new one whole, or nothing.

use lanefs::{Cred, NodeEntry, OpenOptions, Volume};
use lanefs_lab_crash::crash::image::{CowDevice, Image};
use lanefs_lab_crash::crash::states::{Levels, State, enumerate};
use lanefs_lab_crash::fuzz::seeds::mount;
use lanefs_store::device::{Device, Recorder};
use lanefs_store::fsck::{self, FsckOptions};
use lanefs_store::{FormatOptions, Store};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

type Devices = Vec<Arc<dyn Device>>;
/// Every name in the root directory, with the file's content.
type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn plain(images: &[Image]) -> Devices {
    images.iter().map(|i| Arc::new(CowDevice::new(i.clone())) as Arc<dyn Device>).collect()
}

fn options(id: u8, segment_blocks: u32) -> FormatOptions {
    FormatOptions {
        segment_blocks,
        mlogs: 1,
        uuid: Some([id; 16]),
        hash_key: Some([u64::from(id), 2]),
        time: Some(i64::from(id)),
        force: true,
        ..FormatOptions::default()
    }
}

/// The identity and the content of the volume that opens, or why none does.
fn look(devices: Devices, read_only: bool) -> Result<([u8; 16], Content), String> {
    let id = |d: Devices| {
        let o = lanefs_store::OpenOptions { read_only: true, ..lanefs_store::OpenOptions::default() };
        let (s, _) = Store::open(d, &o).map_err(|e| e.to_string())?;
        let id = s.info().uuid;
        s.shutdown();
        Ok::<_, String>(id)
    };
    let before = id(devices.clone())?;
    let v = Volume::open_devices(devices, &mount(read_only)).map_err(|e| e.to_string())?;
    let fs = v.as_user(Cred::root());
    let mut names = Vec::new();
    let listed = fs.read_dir_from("/", 0, &mut |e: NodeEntry<'_>| {
        if e.name != b"." && e.name != b".." {
            names.push(e.name.to_vec());
        }
        true
    });
    listed.map_err(|e| e.to_string())?;
    let mut all = Content::new();
    for n in names {
        let path = format!("/{}", String::from_utf8_lossy(&n));
        all.insert(n, fs.read(path.as_str()).map_err(|e| format!("{path}: {e}"))?);
    }
    v.shutdown();
    Ok((before, all))
}

/// Two devices with a volume that holds something: in a checkpoint, and only in the log.
fn old(id: u8, segment_blocks: u32, base: &[Image]) -> Vec<Image> {
    let devices: Vec<Arc<CowDevice>> = base.iter().map(|i| Arc::new(CowDevice::new(i.clone()))).collect();
    let all: Devices = devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    Store::format(&all, &options(id, segment_blocks)).unwrap();
    let v = Volume::open_devices(all, &mount(false)).unwrap();
    let fs = v.as_user(Cred::root());
    for n in 0..12u8 {
        let path = format!("/{n} of {id}");
        let f = fs.open(path.as_str(), OpenOptions::new().write(true).create(true)).unwrap();
        f.write_all_at(&vec![n + id; 3000 * usize::from(n)], 0).unwrap();
        f.sync_all().unwrap();
        if n == 6 {
            v.checkpoint().unwrap();
        }
    }
    v.shutdown();
    drop(v);
    devices.iter().map(|d| d.image()).collect()
}

struct Case {
    /// The whole volumes: one of them is found, or nothing.
    whole: Vec<([u8; 16], Content)>,
    refused: u64,
    found: Vec<u64>,
    why: HashSet<String>,
}

impl Case {
    fn judge(&mut self, images: &[Image], what: &str) {
        for (what, repaired) in [(what.to_string(), false), (format!("{what}, repaired"), true)] {
            let devices = plain(images);
            if repaired {
                let o = FsckOptions { repair: true, read_data: true, threads: 1, ..FsckOptions::default() };
                // What is no volume is not made one.
                let _ = fsck::check(devices.clone(), &o, &|_| ());
            }
            match look(devices, !repaired) {
                Err(why) => {
                    self.refused += 1;
                    self.why.insert(why);
                }
                Ok(found) => match self.whole.iter().position(|w| *w == found) {
                    Some(n) => self.found[n] += 1,
                    None => panic!(
                        "{what}: neither the old volume nor the new one: {:?} {:?}",
                        found.0,
                        found.1.keys()
                    ),
                },
            }
        }
    }
}

/// Makes a volume on `images` and answers every state of the medium on the way.
fn made_over(images: &[Image], to: &FormatOptions, levels: &Levels, visit: &mut dyn FnMut(State)) {
    let recorder = Recorder::new();
    let devices: Devices = images
        .iter()
        .map(|i| Arc::new(recorder.wrap(CowDevice::new(i.clone()))) as Arc<dyn Device>)
        .collect();
    Store::format(&devices, to).unwrap();
    let mut seen = HashSet::new();
    enumerate(&recorder.log(), images, &[], 0, levels, &mut |s| {
        if seen.insert(s.hash()) {
            visit(s);
        }
        true
    });
}

#[test]
fn a_power_loss_while_a_volume_is_made_over_another_mixes_nothing() {
    let many = std::env::var("LANEFS_CASES").is_ok();
    let (levels, few) = if many { (Levels::LONG, Levels::SHORT) } else { (Levels::SHORT, Levels::QUICK) };
    let mut crashes = 0;
    // One device and two; the same segments and others, so that the copy of the superblock lies
    // elsewhere.
    for (devices, before, after) in [(1, 16, 16), (1, 16, 32), (2, 32, 16)] {
        let zeros = vec![Image::zeros(3000); devices];
        // An even older volume has left what it has left.
        let ancient = old(3, after * 2, &zeros);
        let images = old(5, before, &ancient);
        let to = options(6, after);
        let fresh = plain(&images);
        Store::format(&fresh, &to).unwrap();
        let whole = vec![look(plain(&images), true).unwrap(), look(fresh, true).unwrap()];
        assert!(whole[0].1.len() == 12 && whole[1].1.is_empty() && whole[0].0 != whole[1].0);
        let mut case = Case { whole, refused: 0, found: vec![0; 2], why: HashSet::new() };
        let mut n = 0;
        made_over(&images, &to, &levels, &mut |s| {
            let what =
                format!("{devices} devices, segments of {before}, then {after}; at {}, {}", s.at, s.how);
            case.judge(&s.devices, &what);
            crashes += 1;
            n += 1;
            if n % 29 == 3 {
                // Once more, and again the power goes.
                made_over(&s.devices, &to, &few, &mut |s| {
                    case.judge(&s.devices, &format!("{what}; made again, at {}, {}", s.at, s.how));
                    crashes += 1;
                });
            }
        });
        assert!(case.refused > 10 && case.found.iter().all(|n| *n > 0), "{} {:?}", case.refused, case.found);
        assert!(case.why.iter().all(|w| w.len() > 10), "{:?}", case.why);
        eprintln!(
            "{devices} devices: {} refused, {:?} whole, because {:?}",
            case.refused, case.found, case.why
        );
    }
    assert!(crashes > 300, "{crashes}");
}
