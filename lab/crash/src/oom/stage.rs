//! The stages in which something fails: a stage has the image that it begins with, and the work
//! that is done on it.

use crate::crash::image::{BLOCK, CowDevice, Image};
use crate::crash::plain;
use crate::crash::system::{LaneFs, Live, System};
use lanefs::MountOptions;
use lanefs_lab_model::op::{Outcome, Step, Who};
use lanefs_lab_model::oracle::{Observed, observe};
use lanefs_lab_model::scenario::{script, small};
use lanefs_store::StoreError;
use lanefs_store::device::{Device, FileDevice};
use lanefs_store::fsck::{self, FsckOptions};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The kind of work that a stage does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A volume is opened, and after the mark worked on by its threads, and closed.
    Work,
    /// A volume that was not closed is opened after the mark, so recovered, and closed.
    Open,
    /// Such a volume is checked.
    Check,
    /// A volume without slots is repaired.
    Repair,
    /// A volume is made where there was no file.
    Make,
    /// A volume is made over another.
    MakeOver,
}

/// A stage.
pub struct Stage {
    /// Its name.
    pub name: &'static str,
    /// The kind of its work.
    pub kind: Kind,
    /// Blocks of each device.
    pub blocks: usize,
    /// Image files.
    pub devices: usize,
    /// Whether the volume runs its background threads.
    pub background: bool,
    /// The steps of each thread of the program, and the number of them before the mark. One thread
    /// has the whole volume, several have a directory each.
    pub work: Vec<(Vec<Step>, usize)>,
}

/// The directory in which a thread works, by its number.
pub const HOMES: [&str; 2] = ["/t0", "/t1"];

/// Names and attributes, all that a closure can hold, and a directory that grows over several
/// buckets.
fn names() -> String {
    let long = |i: usize| format!("/many/{}{i}", "n".repeat(180));
    let many: String = (0..48).map(|i| format!("creat {}; ", long(i))).collect();
    format!(
        "mkdir /d; creat /d/a 100; fsync /d/a; link /d/a /b; symlink over/there /s; rename /b /d/c; fsyncdir /d; mkdir /e; creat /e/f 5000; \
         rename /e/f /d/a; fsync /d/a; exchange /d /e; fsyncdir /; unlink /e/c; rmdir /d; setxattr /e user.x 100; setxattr /e/a user.big 9000; \
         chmod /e/a 600; fsync /e/a; rmxattr /e user.x; utimens /e 1000000000; fsyncdir /e; tmpfile 1 /; pwrite 1 0 6000; linkfd 1 /t; fsyncfd 1; \
         open 2 /t; unlink /t; close 1; tick; close 2; tick; mkdir /many; {many}sync; ckpt; unlink {}; rename {} /moved; ls /many; tick; ckpt; \
         remount; ls /many; creat /last 10; fsync /last; link /last /last2; tick",
        long(3),
        long(5)
    )
}

/// Changes of the content of files: tails, holes, cuts, whole pages, and reads of what had left
/// memory.
const CONTENT: &str = "creat /a 3000; fsync /a; append /a 3000; fdatasync /a; write /a 100 9000; trunc /a 5000; fsync /a; append /a 30000; punch /a 8192 8192; \
     zero /a 100 5000; fsync /a; falloc /a 60000 5000; grow /a 60000 4000; sync; creat /b 60000; write /b 20000 10; trunc /b 100; trunc /b 9000; \
     fsync /b; creat /c 200000; fsync /c; write /c 4096 60000; tick; fdatasync /c; remount; read /a; read /c; write /c 100000 50; append /b 5000; \
     fsync /c; unlink /a; tick; ckpt; rename /b /c; fsyncdir /; read /c; trunc /c 0; sync; remount; append /c 70000; sync";

/// All stages.
pub fn all() -> Result<Vec<Stage>, String> {
    let work = |name, text: &str, devices| {
        Ok::<_, String>(Stage {
            name,
            kind: Kind::Work,
            blocks: 1024,
            devices,
            background: false,
            work: vec![(script(text)?, 0)],
        })
    };
    let mut stages = vec![work("names", &names(), 1)?, work("content", CONTENT, 1)?];
    for (name, what) in
        [("cleaning", "cleans: what is changed"), ("cleaning for room", "cleans: for one who finds no room")]
    {
        let found = small()?.into_iter().find(|s| s.name.starts_with(what)).ok_or(what)?;
        let work = vec![(found.steps, found.setup)];
        stages.push(Stage { name, kind: Kind::Work, blocks: 384, devices: 1, background: false, work });
    }
    stages.push(work("two devices", &format!("{CONTENT}; {}", names()), 2)?);
    stages.push(Stage { background: true, ..work("background", &format!("{}; {CONTENT}", names()), 1)? });
    // A write of several units (36 pages with this budget of memory) may be cut between two of them
    // by a sync of the other thread, which no model of one thread knows. No thread can take the
    // volume from the other.
    let two = [names(), CONTENT.replace("creat /c 200000", "creat /c 120000")];
    let two = two.iter().map(|text| script(text)).collect::<Result<Vec<_>, _>>()?;
    let stays =
        |w: Vec<Step>| (w.into_iter().filter(|s| s.op != lanefs_lab_model::op::Op::Remount).collect(), 0);
    stages.push(Stage {
        background: true,
        devices: 2,
        work: two.into_iter().map(stays).collect(),
        ..work("two threads", "", 2)?
    });
    for (name, kind, devices, background) in [
        ("recovery", Kind::Open, 1, false),
        ("recovery by threads", Kind::Open, 2, true),
        ("fsck", Kind::Check, 2, true),
        ("repair", Kind::Repair, 1, true),
        ("mkfs", Kind::Make, 2, false),
        ("mkfs over another", Kind::MakeOver, 2, false),
    ] {
        stages.push(Stage { name, kind, blocks: 1024, devices, background, work: Vec::new() });
    }
    Ok(stages)
}

/// Returns the script whose program is killed with everything under way. It leaves on the medium a
/// tree in a checkpoint, committed epochs and fsyncs behind it, and more content than one thread of
/// a recovery reads.
fn left_open() -> String {
    let many: String = (0..12).map(|i| format!("creat /f{i} 60000; fsync /f{i}; ")).collect();
    format!(
        "{}; ckpt; {CONTENT}; {many}append /f3 100; creat /lost; unlink /f5; rename /f7 /f8; fsync /f8",
        names()
    )
}

impl Stage {
    /// Returns the system by which its volumes are made and opened.
    pub fn system(&self) -> LaneFs {
        let mut system = LaneFs::default();
        if self.background {
            // Whenever they look, they find something to do.
            let often = Duration::from_millis(1);
            let mount = &mut system.mount;
            *mount = MountOptions {
                background: true,
                commit_interval: often,
                dirty_expire: often,
                ..mount.clone()
            };
        }
        system
    }

    /// The image files in a directory.
    pub fn files(&self, dir: &Path) -> Vec<PathBuf> {
        (0..self.devices).map(|d| dir.join(format!("image{d}"))).collect()
    }

    /// The images that it begins with.
    pub fn images(&self) -> Result<Vec<Image>, String> {
        let system = LaneFs::default();
        let fresh: Vec<Arc<CowDevice>> =
            (0..self.devices).map(|_| Arc::new(CowDevice::new(Image::zeros(self.blocks)))).collect();
        let devices: Vec<Arc<dyn Device>> = fresh.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        if self.kind != Kind::Make {
            system.format(&devices)?;
        }
        if !matches!(self.kind, Kind::Work | Kind::Make) {
            let mut live = system.open(devices)?;
            for step in script(&left_open())? {
                if let Outcome::Fail(e) = live.call(step.who, &step.op) {
                    return Err(format!("{}: {:?}: errno {e}", self.name, step.op));
                }
            }
            live.kill();
        }
        let mut images: Vec<Image> = fresh.iter().map(|d| d.image()).collect();
        if self.kind == Kind::Repair {
            let end = images[0].to_vec().len() / BLOCK;
            for slot in [1, 2, end - 2, end - 1] {
                images[0].put(slot, &[0; BLOCK], 0xff);
            }
        }
        Ok(images)
    }

    /// Returns the tree that is found if nothing fails, where the stage changes nothing that
    /// programs see.
    pub fn unchanged(&self, images: &[Image]) -> Result<Option<Observed>, String> {
        if matches!(self.kind, Kind::Work | Kind::Make) {
            return Ok(None);
        }
        let devices = plain(images);
        if self.kind == Kind::Repair {
            check(devices.clone(), true, 1)?;
        }
        let mut live = LaneFs::default().open(devices)?;
        let seen = observe(&mut *live).map_err(|v| v.to_string())?;
        live.kill();
        Ok(Some(seen))
    }

    /// Returns the directory in which thread `t` works.
    pub fn home(&self, t: usize) -> &'static str {
        if self.work.len() > 1 { HOMES[t] } else { "" }
    }
}

/// Checks as `lanefs fsck` does, or repairs. `Err`: it could not be done.
pub fn check(
    devices: Vec<Arc<dyn Device>>,
    repair: bool,
    threads: usize,
) -> Result<fsck::FsckReport, String> {
    let o = FsckOptions { repair, threads, ..FsckOptions::default() };
    fsck::check(devices, &o, &|_| ()).map_err(|e| e.to_string())
}

/// Writes images to files.
pub fn write(images: &[Image], blocks: usize, files: &[PathBuf]) -> Result<(), String> {
    for (image, path) in images.iter().zip(files) {
        let say = |e| format!("{}: {e}", path.display());
        let file = File::create(path).map_err(say)?;
        file.set_len((blocks * BLOCK) as u64).map_err(say)?;
        for b in (0..blocks).filter(|b| image.block(*b).iter().any(|x| *x != 0)) {
            file.write_all_at(image.block(b), (b * BLOCK) as u64).map_err(say)?;
        }
    }
    Ok(())
}

/// Reads an image file once nobody has it open: requests of a process that ended may be under way
/// still, and its lock stays until they are not.
pub fn read(path: &Path, blocks: usize) -> Result<Image, String> {
    let say = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let mut tries = 0;
    let lock = loop {
        match FileDevice::open(path, true) {
            // Opening waits ten seconds each time; the kernel takes what it takes on a busy
            // machine.
            Err(StoreError::InUse { .. }) if tries < 30 => tries += 1,
            opened => break opened.map_err(|e| say(&e))?,
        }
    };
    let bytes = std::fs::read(path).map_err(|e| say(&e))?;
    drop(lock);
    let mut image = Image::zeros(blocks);
    for (b, bytes) in bytes.chunks(BLOCK).enumerate().filter(|b| b.1.iter().any(|x| *x != 0)) {
        image.put(b, bytes, 0xff);
    }
    Ok(image)
}

/// Calls something of a volume that must work now.
pub fn must(live: &mut dyn Live, op: lanefs_lab_model::op::Op) -> Result<(), String> {
    match live.call(Who::Root, &op) {
        Outcome::Fail(e) => Err(format!("{op:?}: {}", lanefs_lab_model::op::errno_name(e))),
        _ => Ok(()),
    }
}
