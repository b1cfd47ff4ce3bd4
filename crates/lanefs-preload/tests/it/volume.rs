//! A volume in a directory of its own, and programs that run on it.

use lanefs::Volume;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The directory below which programs find the volume. The host has none of that name, and has the
/// one above it: programs make what they miss above their own directory, and that was on the host.
pub const PREFIX: &str = "/tmp/lanefs-preload-test";

pub struct TestVolume {
    pub dir: tempfile::TempDir,
}

impl TestVolume {
    pub fn new() -> TestVolume {
        let dir = tempfile::tempdir().unwrap();
        let volume = TestVolume { dir };
        Volume::create(&[volume.image()], 256 << 20).unwrap();
        volume
    }

    pub fn image(&self) -> PathBuf {
        self.dir.path().join("disk.lane")
    }

    /// Opens the volume itself, when no program has it.
    pub fn open(&self) -> Volume {
        Volume::open(&[self.image()], &lanefs::MountOptions { cache_size: 64 << 20, ..Default::default() })
            .unwrap()
    }

    /// Returns a command that finds the volume.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        self.environment(PREFIX, |name, value| {
            command.env(name, value);
        });
        command.env_remove("LANEFS_REPORT").env_remove("LANEFS_CWD").current_dir("/");
        command.stdin(Stdio::null());
        command
    }

    /// Hands the variables to `set` that the library reads.
    pub fn environment(&self, prefix: &str, mut set: impl FnMut(&str, String)) {
        set("LD_PRELOAD", library().display().to_string());
        set("LANEFS_PREFIX", prefix.into());
        set("LANEFS_IMAGES", self.image().display().to_string());
        set("LANEFS_CACHE", (64u64 << 20).to_string());
    }
}

impl Drop for TestVolume {
    fn drop(&mut self) {
        let left = Path::new(PREFIX).ancestors().find(|a| a.exists());
        let made = left != Path::new(PREFIX).parent();
        assert!(std::thread::panicking() || !made, "programs made {left:?} on the host");
    }
}

/// Returns the library, which lies where the test was built.
pub fn library() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let places = this.ancestors().skip(1).take(2).map(|d| d.join("liblanefs_preload.so"));
    let found: Vec<PathBuf> = places.filter(|p| p.exists()).collect();
    found.first().unwrap_or_else(|| panic!("no library near {}", this.display())).clone()
}

/// Compiles one of the programs beside.
pub fn compile(name: &str, to: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(format!("{name}.c"));
    let program = to.join(name);
    let mut cc = Command::new("cc");
    // Warnings are of no use here: the programs do what one must not.
    cc.args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(source);
    let done = cc.output().expect("cc is installed");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    program
}

/// Runs to the end; returns what was written, when it ended well.
pub fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{out}\n{err}");
    assert!(!err.contains("lanefs run:"), "{command:?}\n{err}");
    out.into_owned()
}
