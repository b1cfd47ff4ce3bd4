//! The first process of the guest: it makes the guest's system, runs the command, and powers off.

use super::{BEGUN, OWN, Orders, PORT, ROOT, STATUS};
use crate::error::{Context, Failure, Res};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_move, unmount};
use std::ffi::CString;
use std::fs::File;
use std::path::Path;
use std::process::Command;

/// Options of the host's folders.
const SHARE: &str = "trans=virtio,version=9p2000.L,msize=512000,access=any";

/// Does all that the guest is there for. It returns only where this is no guest.
pub fn main() -> Res<i32> {
    if std::process::id() != 1 {
        return Err(Failure::refused("this is for the first process of a guest; see `guest`"));
    }
    if let Err(e) = work() {
        eprintln!("lanefs-bench: in the guest: {e}");
    }
    rustix::fs::sync();
    rustix::system::reboot(rustix::system::RebootCommand::PowerOff).at("powering off")?;
    Ok(0)
}

/// Mounts a file system of the kernel's own, or a share, at a folder that is there.
fn mounted(source: &str, at: &Path, kind: &str, options: &str, flags: MountFlags) -> Res<()> {
    let options = CString::new(options).at("mount options")?;
    mount(source, at, kind, flags, Some(&*options)).at(format!("mounting {source} at {}", at.display()))
}

fn load(modules: &[String]) -> Res<()> {
    for name in modules {
        let path = Path::new("/modules").join(name);
        let module = File::open(&path).at(path.display())?;
        match rustix::system::finit_module(&module, c"", 0) {
            // A part of the processor that it is for is not there (checksums by instruction).
            Err(rustix::io::Errno::NODEV) | Err(rustix::io::Errno::EXIST) | Ok(()) => {}
            Err(e) => return Err(Failure::new(format!("module {name}: {e}"))),
        }
    }
    Ok(())
}

/// Makes the system: the host's root for reading, the guest's own places, the folders for results.
fn build(orders: &Orders) -> Res<()> {
    let none = MountFlags::empty();
    mounted("devtmpfs", Path::new("/dev"), "devtmpfs", "", none)?;
    mounted("proc", Path::new("/proc"), "proc", "", none)?;
    mounted("sysfs", Path::new("/sys"), "sysfs", "", none)?;
    load(&orders.modules)?;
    let host = Path::new("/host");
    mounted(ROOT, host, "9p", &format!("{SHARE},cache=loose"), MountFlags::RDONLY)?;
    for place in ["tmp", "run"] {
        mounted("tmpfs", &host.join(place), "tmpfs", "size=100%", none)?;
    }
    for place in ["dev", "proc", "sys"] {
        let (from, to) = (Path::new("/").join(place), host.join(place));
        mount_move(&from, &to).at(format!("moving {}", from.display()))?;
    }
    rustix::process::chroot(host).and_then(|()| rustix::process::chdir("/")).at("changing the root")?;
    format(&orders.images)?;
    for (n, folder) in orders.writable.iter().enumerate() {
        // Below /tmp, /run and the disk the host's folders are not seen.
        let at = if n == 0 { Path::new(OWN) } else { folder };
        std::fs::create_dir_all(at).at(at.display())?;
        mounted(&format!("out{n}"), at, "9p", SHARE, none)?;
    }
    let begun = Path::new(OWN).join(BEGUN);
    std::fs::write(&begun, "").at(begun.display())?;
    // What made /tmp the guest's own may have hidden it.
    std::fs::create_dir_all(&orders.at).at(orders.at.display())
}

/// Makes a file system on the disk and mounts it.
fn format(at: &Path) -> Res<()> {
    let quiet = ["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", "/dev/vda"];
    let made = Command::new("mkfs.ext4").args(quiet).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").status();
    if !made.at("running mkfs.ext4")?.success() {
        return Err(Failure::new("mkfs.ext4 /dev/vda failed"));
    }
    std::fs::create_dir_all(at).at(at.display())?;
    mounted("/dev/vda", at, "ext4", "", MountFlags::empty())
}

/// Opens the port that goes to the host's standard output.
fn port() -> Res<File> {
    let class = Path::new("/sys/class/virtio-ports");
    for entry in std::fs::read_dir(class).at(class.display())?.flatten() {
        let name = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim() == PORT {
            let device = Path::new("/dev").join(entry.file_name());
            return std::fs::OpenOptions::new().write(true).open(&device).at(device.display());
        }
    }
    Err(Failure::new(format!("{}: no port {PORT}", class.display())))
}

fn work() -> Res<()> {
    let text = std::fs::read("/orders.json").at("/orders.json")?;
    let orders: Orders = serde_json::from_slice(&text).at("/orders.json")?;
    build(&orders)?;
    let [program, arguments @ ..] = &*orders.command else { return Err(Failure::new("no command")) };
    let (out, error) = port().and_then(|out| Ok((out.try_clone().at(PORT)?, out)))?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(&orders.at).env_clear().env("PATH", &orders.path);
    command.env("HOME", "/tmp").env("TMPDIR", "/tmp").stdin(std::process::Stdio::null());
    let mut child = command.stdout(out).stderr(error).spawn().at(program)?;
    let code = reap(child.id()).or_else(|| child.wait().ok()?.code()).unwrap_or(2);
    let status = Path::new(OWN).join(STATUS);
    std::fs::write(&status, code.to_string()).at(status.display())?;
    // The disk's file is removed next; what the two sides share must be whole.
    unmount(OWN, UnmountFlags::DETACH).at(OWN)
}

/// Waits for the command, and for all that lose their parent meanwhile: they are the first
/// process's. Returns the command's exit status.
fn reap(command: u32) -> Option<i32> {
    loop {
        let (pid, status) = rustix::process::wait(rustix::process::WaitOptions::empty()).ok()??;
        if pid.as_raw_nonzero().get() as u32 == command {
            return status.exit_status().or(status.terminating_signal().map(|s| 128 + s));
        }
    }
}
