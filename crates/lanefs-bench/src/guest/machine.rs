//! QEMU: its arguments, its end, and what the guest said when something went wrong.

use super::first::Files;
use super::kernel::Kernel;
use super::{Orders, PORT, ROOT};
use crate::error::{Context, Failure, Res, say};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The program.
const QEMU: &str = "qemu-system-x86_64";
/// The lines of the console that a failure tells.
const LAST_WORDS: usize = 12;
/// The longest that a guest on real processors takes to its first process. There are machines whose
/// KVM is there and does not work: the guest does nothing for ever.
const FIRST_SIGN: Duration = Duration::from_secs(30);

/// What the guest's instructions are carried out by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Accel {
    Kvm,
    Emulation,
}

/// What the guest is to have.
pub struct Wishes {
    /// Processors.
    pub cpus: usize,
    /// Bytes of memory, if somebody said.
    pub memory: Option<u64>,
    /// No KVM, also where it is there.
    pub emulate: bool,
}

/// Returns whether a guest can run on this machine's processors.
fn has_kvm() -> bool {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok()
}

/// Returns two thirds of the memory that is available, in bytes.
fn two_thirds() -> Res<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").at("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib: Option<u64> = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
    Ok(kib.ok_or_else(|| Failure::new("/proc/meminfo: no MemAvailable"))? * 1024 / 3 * 2)
}

/// Returns a path as the value of one of QEMU's options, where a comma would end it.
fn value(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// Returns QEMU's arguments.
fn arguments(
    kernel: &Kernel,
    files: &Files,
    orders: &Orders,
    front: &[&str],
    (cpus, memory, accel): (usize, u64, Accel),
) -> Vec<OsString> {
    let mut args: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(OsString::from));
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35"]);
    // `max` is the host's processor, or all that can be emulated. Its register of what it is immune
    // to cannot be set where the host is a guest itself.
    add(match accel {
        Accel::Kvm => &["-accel", "kvm", "-cpu", "max,arch-capabilities=off"],
        Accel::Emulation => &["-accel", "tcg", "-cpu", "max"],
    });
    add(&["-smp", &cpus.to_string(), "-m", &format!("{}M", memory >> 20)]);
    add(&["-kernel", &kernel.image.to_string_lossy(), "-initrd", &files.archive.to_string_lossy()]);
    let command = front.iter().chain(&["inside"]).copied().collect::<Vec<_>>().join(" ");
    add(&["-append", &format!("console=ttyS0 quiet panic=-1 -- {command}")]);
    add(&["-serial", &format!("file:{}", files.console.display())]);
    add(&["-chardev", "stdio,id=output,signal=off", "-device", "virtio-serial-pci"]);
    add(&["-device", &format!("virtserialport,chardev=output,name={PORT}")]);
    let share = |path: &Path, tag: &str, more: &str| {
        format!("local,path={},mount_tag={tag},security_model=none,multidevs=remap{more}", value(path))
    };
    add(&["-virtfs", &share(Path::new("/"), ROOT, ",readonly=on")]);
    for (n, folder) in orders.writable.iter().enumerate() {
        add(&["-virtfs", &share(folder, &format!("out{n}"), "")]);
    }
    let disk = format!("file={},if=virtio,format=raw,cache=none,discard=unmap", value(&files.disk));
    add(&["-drive", &disk]);
    args
}

/// Waits for the end of a guest, and returns it; nothing if it gave no sign of life, and was ended
/// for that.
fn begun(mut qemu: Child, sign: &Path) -> Res<Option<ExitStatus>> {
    let _open = qemu.stdin.take();
    let patience = Instant::now() + FIRST_SIGN;
    while !sign.exists() {
        if let Some(status) = qemu.try_wait().at(QEMU)? {
            // Refused at once, or interrupted: if there is a reason, emulation meets it again.
            return Ok(Some(status).filter(ExitStatus::success));
        }
        if Instant::now() > patience {
            say("KVM does not work here: a guest on it gave no sign of life (--emulate saves the wait)")?;
            qemu.kill().and_then(|()| qemu.wait()).at(QEMU)?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    qemu.wait().map(Some).at(QEMU)
}

/// Starts the guest and returns the exit status of its command.
pub fn run(
    kernel: &Kernel,
    files: &Files,
    orders: &Orders,
    front: &[&str],
    wishes: &Wishes,
    on_disk: bool,
) -> Res<i32> {
    let memory = wishes.memory.map_or_else(two_thirds, Ok)?;
    say(format_args!(
        "in a guest: Linux {}, {} processors, {} MiB of memory{}",
        kernel.release,
        wishes.cpus,
        memory >> 20,
        if on_disk { "; its disk is a file of this machine's" } else { "" }
    ))?;
    let start = |accel| {
        let mut qemu = Command::new(QEMU);
        qemu.args(arguments(kernel, files, orders, front, (wishes.cpus, memory, accel)))
            .stdin(Stdio::piped());
        qemu.spawn().map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Failure::new(format!("{QEMU} is not installed (apt-get install qemu-system-x86)"))
            }
            _ => Failure::new(format!("{QEMU}: {e}")),
        })
    };
    let mut ended = None;
    if !wishes.emulate && has_kvm() {
        ended = begun(start(Accel::Kvm)?, &files.begun)?;
    }
    if ended.is_none() && !crate::interrupt::requested() {
        say("emulated, many times slower than a machine: times compare within this guest alone")?;
        let mut qemu = start(Accel::Emulation)?;
        // At the end of its standard input QEMU takes the guest's port for closed, and the guest
        // waits. To wait for a child closes it, unless it was taken.
        let _open = qemu.stdin.take();
        ended = Some(qemu.wait().at(QEMU)?);
    }
    let ended = ended.ok_or_else(Failure::interrupted)?;
    if crate::interrupt::requested() {
        return Err(Failure::interrupted());
    }
    let status = std::fs::read_to_string(&files.status).ok().and_then(|s| s.trim().parse().ok());
    status.ok_or_else(|| {
        let said = std::fs::read(&files.console).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        let lines: Vec<&str> = said.lines().filter(|l| !l.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(LAST_WORDS)..].join("\n");
        Failure::new(format!("the guest did not end as it should ({ended}); its last words:\n{last}"))
    })
}
