//! `lanefs mount`

use super::mkfs;
use crate::daemon::{self, Parent, Role};
use crate::failure::{About, Failure, Outcome};
use crate::metrics::Metrics;
use crate::{image, loop_device, mounted, mountinfo, size};
use lanefs::MountOptions;
use lanefs_format::BLOCK_SIZE;
use lanefs_format::superblock::MAX_MLOGS;
use lanefs_fuse::{MountConfig, Watchdog};
use lanefs_store::FormatOptions;
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Mount a volume at a directory
///
/// Says in a line what it came to, and returns when the mount serves; a background process answers
/// until `lanefs umount DIR` or umount(8). Options of -o: those of mount(8) (ro, noexec, suid, dev,
/// noatime, sync, dirsync), of FUSE (allow_other, allow_root, auto_unmount), unchecked (only root
/// enters, and no mode is asked), noxattr (no extended attributes, which the kernel asks for before
/// the first write to a file), noloop (no loop device that has sync and syncfs reach the mount of
/// an image in a file), loop (one that is read and written), and io_uring=auto|on|off, threads=N,
/// readers=N (threads that read /dev/fuse at a time), spin=MICROSECONDS (for which the thread that
/// serves a lone caller looks for its next request before it sleeps: 50, or up to 1000; 0 sleeps at
/// once), idle=auto|poll|halt (whether idle processors look for work while calls come thick),
/// max_write=BYTES (of one request: 4096 to 1048576), ttl=SECONDS, handles=auto|on|off (whether
/// file handles lead to files, for NFS servers; from Linux 6.16 on at the expense of overlays),
/// profile=gather|through|stateless (what the kernel asks for), nowriteback, cache_size=SIZE,
/// commit=SECONDS, dirty_expire=SECONDS, order=relaxed, mlogs=N (1 to 128, fewer on small volumes),
/// log=FILE, metrics=SOCKET (where the mount tells its figures to Prometheus), create, size=SIZE
/// (of an image that is made), fsname=NAME (taken and left aside: the mount table names the
/// images). A mount made by root is open to all users unless noallow_other is given.
#[derive(clap::Args, Debug, Default)]
pub struct Args {
    /// Make the volume first if the image does not exist
    #[arg(long)]
    pub create: bool,
    /// Size of a volume that is made, such as 4G
    #[arg(long, value_parser = size::parse)]
    pub size: Option<u64>,
    /// Stay in the foreground; end with SIGINT or SIGTERM
    #[arg(long, short)]
    pub foreground: bool,
    /// Mount options, separated by commas
    #[arg(short, value_name = "OPTS")]
    pub options: Vec<String>,
    /// Memory for pages, inodes and directories [default: a quarter of RAM, or of what a
    /// container allows]
    #[arg(long, value_parser = size::parse)]
    pub cache_size: Option<u64>,
    /// The volume's images or block devices
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
    /// Where to mount
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Say nothing of what the mount came to, nor about options that have no effect
    #[arg(skip)]
    pub quiet: bool,
}

/// What a loop device is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByLoop {
    /// The image is attached to one, which is read and written.
    Attached,
    /// One stands for the image, if there are loop devices.
    StandsFor,
    /// Nothing.
    Not,
}

/// The arguments, decoded.
pub(super) struct Plan {
    pub images: Vec<PathBuf>,
    dir: PathBuf,
    pub create: bool,
    size: Option<u64>,
    pub log: Option<PathBuf>,
    /// Where the figures are told.
    pub metrics: Option<PathBuf>,
    quiet: bool,
    remount: bool,
    /// How the kernel comes to mount a block device.
    by_loop: ByLoop,
    /// Options of mount(8) about times that mean nothing here.
    without_effect: Vec<String>,
    pub volume: MountOptions,
    pub mount: MountConfig,
}

/// The age at which content is written that a kernel has handed over: it did so because the file
/// was closed, or was asked for it (`sync_file_range`), or had it for half a minute. So long ext4
/// takes at the most until a commit has it.
const HANDED_OVER: Duration = Duration::from_secs(5);

/// Decodes the arguments.
pub(super) fn plan(args: &Args) -> Result<Plan, Failure> {
    let mut plan = Plan {
        images: args.images.clone(),
        dir: args.dir.clone(),
        create: args.create,
        size: args.size,
        log: None,
        metrics: None,
        quiet: args.quiet,
        remount: false,
        by_loop: ByLoop::StandsFor,
        without_effect: Vec::new(),
        volume: MountOptions { dirty_expire: HANDED_OVER, ..MountOptions::default() },
        mount: MountConfig::default(),
    };
    if let Some(bytes) = args.cache_size {
        plan.volume.cache_size = bytes;
    }
    for list in &args.options {
        let times = |o: &&str| ["strictatime", "lazytime", "nodiratime"].contains(o);
        plan.without_effect.extend(list.split(',').map(str::trim).filter(times).map(String::from));
        let rest = plan.mount.parse(list).map_err(Failure::new)?;
        for (name, value) in rest {
            let bad = || {
                Failure::new(lanefs_fuse::BadOption(
                    name.to_string() + &value.map_or(String::new(), |v| format!("={v}")),
                ))
            };
            let number = || value.and_then(|v| v.parse::<u64>().ok()).ok_or_else(bad);
            let bytes = || value.and_then(|v| size::parse(v).ok()).ok_or_else(bad);
            match name {
                "create" if value.is_none() => plan.create = true,
                "size" => plan.size = Some(bytes()?),
                "mlogs" => {
                    let n = number()?;
                    if !(1..=u64::from(MAX_MLOGS)).contains(&n) {
                        return Err(Failure::new(format_args!("mlogs={n}: name 1 to {MAX_MLOGS}")));
                    }
                    plan.volume.mlogs = n as usize;
                }
                // mount(8) may have done it already; then the image is a block device.
                "loop" => plan.by_loop = ByLoop::Attached,
                "noloop" if value.is_none() => plan.by_loop = ByLoop::Not,
                "remount" if value.is_none() => plan.remount = true,
                "log" => plan.log = Some(value.ok_or_else(bad)?.into()),
                "metrics" => plan.metrics = Some(value.filter(|v| !v.is_empty()).ok_or_else(bad)?.into()),
                _ if plan.volume.set(name, value).is_ok_and(|known| known) => {}
                _ => return Err(bad()),
            }
        }
    }
    plan.volume.read_only = plan.mount.read_only;
    plan.volume.noatime = plan.mount.noatime;
    plan.volume.buffers = plan.mount.buffers();
    debug_assert!((0..=MAX_MLOGS as usize).contains(&plan.volume.mlogs));
    plan.volume.at_rest = Some(crate::allocator::give_back_now);
    Ok(plan)
}

/// Reads the arguments without mounting.
pub fn check(args: &Args) -> Result<(), Failure> {
    plan(args).map(drop)
}

/// Mounts, and serves until the mount is gone.
pub fn run(args: &Args) -> Outcome {
    let mut plan = plan(args)?;
    if plan.remount {
        return remount(args).map(|()| 0);
    }
    check_dir(&plan.dir)?;
    // The daemon's working directory is the root.
    for image in &mut plan.images {
        *image = image.canonicalize().or_else(|_| std::path::absolute(&*image)).about(image.display())?;
    }
    for file in [&mut plan.log, &mut plan.metrics].into_iter().flatten() {
        *file = std::path::absolute(&*file).about(file.display())?;
    }
    debug_assert!(
        plan.images.iter().chain(&plan.log).chain(&plan.metrics).all(|p| p.is_absolute()),
        "the daemon looks from /"
    );
    let names: Vec<String> = plan.images.iter().map(|i| i.display().to_string()).collect();
    plan.mount.source = names.join(",");

    let mut parent = match args.foreground {
        true => Parent::none(),
        false => match daemon::fork()? {
            Role::Starter => return Ok(0),
            Role::Daemon(parent) => parent,
        },
    };
    // Before there are threads, and before anything is open that it must not have. A mount without
    // is better than none.
    let watchdog = Watchdog::start().ok();
    crate::allocator::give_back_soon();
    match serve(&plan, watchdog, &mut parent) {
        Ok(()) => Ok(0),
        Err(failure) => Err(parent.fail(failure)),
    }
}

/// Changes the flags of a mount that is there. Options of the volume or of the server stay as they
/// were when it was mounted.
fn remount(args: &Args) -> Result<(), Failure> {
    let dir = args.dir.canonicalize().about(args.dir.display())?;
    let mount = mountinfo::at(&dir).about("/proc/self/mountinfo")?.ok_or_else(|| {
        Failure::new(format_args!("{}: no LaneFS volume is mounted here; mount one first", dir.display()))
    })?;
    let mut config = MountConfig { suid: true, dev: true, ..MountConfig::default() };
    config.parse(&mount.options).map_err(Failure::new)?;
    // The helper's own "suid,dev" is for mounts that are made.
    for list in &args.options {
        config.parse(list.strip_prefix("suid,dev,").unwrap_or(list)).map_err(Failure::new)?;
    }
    if !config.read_only && mounted::ask(&dir)?.read_only {
        return Err(Failure::new(format_args!(
            "{}: the volume was opened for reading only; unmount it, and mount it with -o rw",
            dir.display()
        )));
    }
    match rustix::mount::mount_remount(&dir, config.flags(), c"") {
        Err(rustix::io::Errno::BUSY) => Err(Failure::new(format_args!(
            "{}: in use: a file of it is open for writing, or was removed and is still open; see who with \
             `fuser -vm {}`",
            dir.display(),
            dir.display()
        ))),
        r => r.map_err(std::io::Error::from).about(dir.display()),
    }?;
    // What is read only is whole on the medium.
    if config.read_only { mounted::sync(&dir) } else { Ok(()) }
}

/// Makes the volume if its images do not exist. In the serving process: an io_uring does not
/// survive a fork.
pub(super) fn create(plan: &Plan) -> Result<(), Failure> {
    if plan.images.iter().all(|i| i.exists()) {
        return Ok(());
    }
    if let Some(there) = plan.images.iter().find(|i| i.exists()) {
        return Err(Failure::new(format_args!(
            "{}: exists, but other images of the volume do not; name all or none of them",
            there.display()
        )));
    }
    mkfs::make(&plan.images, plan.size, &FormatOptions::for_caller()).map(drop)
}

/// Returns a line about each option that has no effect.
pub(super) fn without_effect(plan: &Plan, volume: &lanefs::Volume) -> Vec<String> {
    let mut lines = Vec::new();
    let used = volume.info().mlogs;
    if plan.volume.mlogs > used {
        let asked = plan.volume.mlogs;
        lines.push(format!("mlogs={asked}: the volume has room for {used} only; so many are used"));
    }
    for name in &plan.without_effect {
        lines.push(format!("{name}: has no effect; access times are kept as by relatime, or not (noatime)"));
    }
    let other = |image: &PathBuf| {
        let meta = std::fs::metadata(image).ok().filter(|m| m.is_file())?;
        (plan.size?.next_multiple_of(BLOCK_SIZE as u64) != meta.len())
            .then_some((image.display().to_string(), meta.len()))
    };
    if let Some((image, bytes)) = plan.images.iter().find_map(other) {
        let has = size::show(bytes);
        lines.push(format!("the size is for an image that is made; {image} has {has} and keeps them"));
    }
    lines
}

fn is_block_device(image: &Path) -> bool {
    std::fs::metadata(image).is_ok_and(|m| m.file_type().is_block_device())
}

/// Refuses a directory that cannot be mounted at.
fn check_dir(dir: &Path) -> Result<(), Failure> {
    match std::fs::metadata(dir) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(Failure::new(format_args!("{}: not a directory; name one to mount at", dir.display()))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Failure::new(format_args!(
            "{}: no such directory; make it first: mkdir {}",
            dir.display(),
            dir.display()
        ))),
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => Err(mounted::dead(dir)),
        Err(e) => Err(e).about(format_args!("{}: cannot be mounted at", dir.display())),
    }
}

/// Mounts, reports that to `parent`, and serves until the mount is gone.
fn serve(plan: &Plan, watchdog: Option<Watchdog>, parent: &mut Parent) -> Result<(), Failure> {
    start_log(plan.log.as_deref())?;
    let signals = lanefs_fuse::block_signals().about("cannot wait for signals")?;
    lanefs_fuse::serve_as_flusher();
    if plan.create {
        create(plan)?;
    }
    let (images, mut config) = (&plan.images, plan.mount.clone());
    let attach = plan.by_loop == ByLoop::Attached;
    let mut attached = match &images[..] {
        [_] if attach && plan.mount.auto_unmount => {
            return Err(Failure::new(
                "-o loop and auto_unmount: name one of them; fusermount3 mounts no block devices",
            ));
        }
        [image] if attach && image.is_file() => Some(loop_device::attach(image, plan.volume.read_only)?),
        [_, _, ..] if attach => return Err(Failure::new("-o loop is for volumes on one image")),
        _ => None,
    };
    let device = match (&attached, &images[..]) {
        (Some(attached), _) => Some(&attached.path),
        (None, [image]) if is_block_device(image) => Some(image),
        _ => None,
    };
    // Only root may mount a block device, and not by way of fusermount3.
    let may = rustix::process::geteuid().is_root() && !config.auto_unmount;
    let volume = match device.filter(|_| may) {
        Some(device) => {
            config.source = device.display().to_string();
            config.block_device = Some(config.source.clone());
            image::open_to_mount(device, &plan.volume)?
        }
        None => {
            let volume = image::open_with(images, &plan.volume)?;
            // The mount table names one device, and by that one image.
            if let ([image], ByLoop::StandsFor, true) = (&images[..], plan.by_loop, may) {
                // There may be no loop device, as in a container: then sync is no promise.
                attached = loop_device::stand_for(image, plan.volume.read_only).ok();
            }
            config.block_device = attached.as_ref().map(|a| a.path.display().to_string());
            volume
        }
    };
    if !plan.quiet {
        without_effect(plan, &volume).iter().for_each(|line| eprintln!("lanefs: {line}"));
    }
    // Before the mount, so that an error leaves none behind.
    let metrics = plan.metrics.as_deref().map(Metrics::bind).transpose()?;
    let mounted = lanefs_fuse::mount_watched(volume, &plan.dir, &config, watchdog);
    let mut session =
        mounted.about(format_args!("{}: cannot mount {}", plan.dir.display(), plan.mount.source))?;
    drop(attached);
    let (unmounter, give_up) = (session.unmounter(), session.giver_up());
    let waits = move || {
        let mut is_asked = false;
        loop {
            signals.wait();
            if give_up(std::mem::replace(&mut is_asked, true)) {
                continue;
            }
            // It may have to wait for the host of an image: by a thread of its own, so that another
            // signal is heard.
            let own = unmounter.clone();
            let stop = move || own.stop();
            if std::thread::Builder::new().name("unmounter".into()).spawn(stop).is_err() {
                unmounter.stop();
            }
        }
    };
    // Without it no signal would unmount: then there is no mount.
    std::thread::Builder::new().name("signals".into()).spawn(waits).about("a thread for signals")?;
    if let Some(metrics) = &metrics {
        metrics.serve(session.reporter())?;
    }
    if !plan.quiet {
        // Nobody may listen.
        let _ = writeln!(std::io::stdout(), "{}: {}", plan.dir.display(), session.summary());
    }
    parent.serving(plan.log.as_deref())?;
    let served = session.wait_for_end();
    drop(metrics);
    mounted::closing();
    let closed = session.join();
    served
        .and(closed)
        .inspect_err(|e| tracing::error!("{}: {e}", plan.mount.source))
        .about(&plan.mount.source)
}

/// Has messages of the serving process go to the log file if there is one, else to the system's
/// (see [`crate::log`]).
pub(super) fn start_log(file: Option<&Path>) -> Result<(), Failure> {
    let filter = LevelFilter::WARN;
    let layer = tracing_subscriber::fmt::layer().with_ansi(false);
    let layer = match file {
        Some(path) => {
            let file = std::fs::File::options().create(true).append(true).open(path).about(path.display())?;
            layer.with_writer(std::sync::Mutex::new(file)).with_filter(filter).boxed()
        }
        None => layer.with_writer(crate::log::System).without_time().with_filter(filter).boxed(),
    };
    tracing_subscriber::registry().with(layer).init();
    Ok(())
}
