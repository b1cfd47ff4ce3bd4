//! A volume on an image in a temporary folder, mounted; all of it goes away when this does,
//! whatever happened.

use super::child::{self, kill, tail, wait};
use crate::run::{cargo, root, run};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The temporary folder, the image in it, and the process that serves the mount.
pub struct Volume {
    pub dir: PathBuf,
    lanefs: PathBuf,
    options: Vec<String>,
    server: Option<Child>,
    /// The loop device on the image, if that is what is mounted.
    device: Option<PathBuf>,
    /// The number of bytes of the serving process's messages that have been looked at.
    heard: usize,
}

/// Builds the release `lanefs` and says where it is; or takes the one that LANEFS names.
pub fn build() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("LANEFS") {
        return Ok(path.into());
    }
    run(&mut cargo(&["build", "--release", "--quiet", "--package", "lanefs-cli"]))?;
    let path = target().join("release/lanefs");
    if path.is_file() { Ok(path) } else { Err(format!("{}: was not built", path.display())) }
}

/// Returns the folder in which cargo builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

impl Volume {
    /// Makes a volume of this size; not mounted yet. `options` go to `lanefs mount`.
    pub fn make(lanefs: &Path, size: &str, options: &[&str]) -> Result<Volume, String> {
        let base = std::env::temp_dir();
        let unique = format!("lanefs-programs-{}-{}", std::process::id(), count());
        let dir = base.join(unique);
        std::fs::create_dir_all(dir.join("mnt")).map_err(|e| format!("{}: {e}", dir.display()))?;
        std::fs::create_dir_all(dir.join("outside")).map_err(|e| format!("{}: {e}", dir.display()))?;
        let volume = Volume {
            dir,
            lanefs: lanefs.to_path_buf(),
            options: options.iter().map(|o| o.to_string()).collect(),
            server: None,
            device: None,
            heard: 0,
        };
        let mut mkfs = volume.lanefs(&["mkfs", "--size", size]);
        child::succeed(mkfs.arg(volume.image()), &volume.outside(), Duration::from_secs(60))?;
        Ok(volume)
    }

    /// Makes the same on a loop device; takes root.
    pub fn make_on_device(lanefs: &Path, size: &str, options: &[&str]) -> Result<Volume, String> {
        let mut volume = Volume::make(lanefs, size, options)?;
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show"]).arg(volume.image());
        let said = child::succeed(&mut losetup, &volume.outside(), Duration::from_secs(60))?;
        volume.device = Some(PathBuf::from(said.trim()));
        Ok(volume)
    }

    /// What is mounted: the image, or the device that it lies on.
    fn source(&self) -> PathBuf {
        self.device.clone().unwrap_or_else(|| self.image())
    }

    /// Returns the folder in which it is mounted.
    pub fn mnt(&self) -> PathBuf {
        self.dir.join("mnt")
    }
    /// The image.
    pub fn image(&self) -> PathBuf {
        self.dir.join("volume.lane")
    }
    /// Returns the path of the copy of the image as a kill left it.
    pub fn killed(&self) -> PathBuf {
        self.dir.join("killed.lane")
    }
    /// A folder that is not in the volume.
    pub fn outside(&self) -> PathBuf {
        self.dir.join("outside")
    }
    fn log(&self) -> PathBuf {
        self.dir.join("mount.log")
    }

    /// A `lanefs` command.
    pub fn lanefs(&self, args: &[&str]) -> Command {
        let mut c = Command::new(&self.lanefs);
        c.args(args);
        c
    }

    /// Mounts it and returns when it serves: how long that took.
    pub fn mount(&mut self) -> Result<Duration, String> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .map_err(|e| format!("{}: {e}", self.log().display()))?;
        let mut command = self.lanefs(&["mount", "--foreground"]);
        command.args(&self.options).arg(self.source()).arg(self.mnt());
        let start = Instant::now();
        let out = log.try_clone().map_err(|e| e.to_string())?;
        let server = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(log)
            .spawn()
            .map_err(|e| format!("{}: {e}", child::describe(&command)))?;
        let server = self.server.insert(server);
        loop {
            if is_mounted(&self.dir.join("mnt")) {
                return Ok(start.elapsed());
            }
            if let Ok(Some(status)) = server.try_wait() {
                self.server = None;
                return Err(format!("mount: {status}\n{}", self.messages()));
            }
            if start.elapsed() > Duration::from_secs(120) {
                return Err(format!("mount: does not serve after 120 s\n{}", self.messages()));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// Errors and warnings of the serving process since the last call.
    pub fn complaints(&mut self) -> Result<(), String> {
        let text = std::fs::read(self.log()).unwrap_or_default();
        let fresh = String::from_utf8_lossy(&text[self.heard.min(text.len())..]).into_owned();
        self.heard = text.len();
        let bad: Vec<&str> = fresh
            .lines()
            .filter(|l| l.contains("ERROR") || l.contains("WARN") || l.contains("panicked"))
            .collect();
        if bad.is_empty() { Ok(()) } else { Err(format!("the serving process says:\n{}", bad.join("\n"))) }
    }

    /// Returns the last messages of the serving process.
    pub fn messages(&self) -> String {
        let text = std::fs::read(self.log()).unwrap_or_default();
        tail(&String::from_utf8_lossy(&text), 15)
    }

    /// The serving process.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// An error if the serving process is gone or does not answer.
    pub fn alive(&mut self) -> Result<(), String> {
        if let Some(server) = &mut self.server
            && let Ok(Some(status)) = server.try_wait()
        {
            return Err(format!("the process that serves the mount ended: {status}\n{}", self.messages()));
        }
        let mut stat = Command::new("stat");
        child::succeed(stat.arg("-f").arg(self.mnt()), &self.outside(), Duration::from_secs(60)).map(drop)
    }

    /// Unmounts it cleanly; returns when the serving process has ended: how long that took.
    pub fn umount(&mut self) -> Result<Duration, String> {
        let start = Instant::now();
        let mut umount = self.lanefs(&["umount"]);
        child::succeed(umount.arg(self.mnt()), &self.outside(), Duration::from_secs(300))?;
        if let Some(mut server) = self.server.take() {
            match wait(&mut server, Duration::from_secs(300)) {
                Ok(Some(s)) if s.success() => {}
                Ok(Some(s)) => return Err(format!("the serving process ended: {s}\n{}", self.messages())),
                _ => {
                    child::end_tree(&mut server);
                    return Err("the serving process did not end after umount; killed".into());
                }
            }
        }
        Ok(start.elapsed())
    }

    /// `kill -9` of the serving process. The dead mount stays: whoever works in it gets errors.
    pub fn kill_server(&mut self) -> Result<(), String> {
        if let Some(mut server) = self.server.take() {
            kill(server.id());
            server.wait().map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// The same; clears the dead mount.
    pub fn kill(&mut self) -> Result<(), String> {
        self.kill_server()?;
        let start = Instant::now();
        while is_mounted(&self.mnt()) {
            let _ = Command::new("umount").arg("-l").arg(self.mnt()).stderr(Stdio::null()).status();
            if start.elapsed() > Duration::from_secs(30) {
                return Err(format!("umount -l {}: still mounted", self.mnt().display()));
            }
        }
        Ok(())
    }

    /// `lanefs fsck` must find nothing.
    pub fn fsck(&self) -> Result<(), String> {
        let mut fsck = self.lanefs(&["fsck"]);
        child::succeed(fsck.arg(self.source()), &self.outside(), Duration::from_secs(600)).map(drop)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Nobody is left to tell; what could not be unmounted must not be removed below.
        let detach = |device: &PathBuf| {
            let detached = Command::new("losetup").arg("--detach").arg(device).status();
            if detached.is_ok_and(|s| s.success()) {
                Ok(())
            } else {
                Err(format!("{}: is attached", device.display()))
            }
        };
        if let Err(e) = self.kill().and_then(|()| self.device.iter().try_for_each(detach)) {
            eprintln!("xtask: {e}");
        } else if std::env::var_os("LANEFS_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// Returns whether something is mounted here.
pub fn is_mounted(p: &Path) -> bool {
    std::fs::read_to_string("/proc/self/mounts")
        .is_ok_and(|m| m.lines().any(|l| l.split(' ').nth(1) == p.to_str()))
}

/// A number not given before in this process.
fn count() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only uniqueness counts.
    NEXT.fetch_add(1, Relaxed)
}
