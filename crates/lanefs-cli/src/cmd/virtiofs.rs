//! `lanefs virtiofs`

use super::mount;
use crate::failure::{About, Failure, Outcome};
use crate::metrics::Metrics;
use crate::{image, mounted, size, socket};
use lanefs_fuse::MountConfig;
use lanefs_virtiofs::{MOST_QUEUES, Options, Server, Tag};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Serve a volume to a virtual machine, which mounts it by virtiofs
///
/// Waits at a socket (vhost-user) for QEMU, Cloud Hypervisor, crosvm or another, says in a line how
/// these connect, and serves until the virtual machine ends or a signal (SIGINT, SIGTERM) comes.
/// Then the volume is closed. In the guest: mount -t virtiofs TAG DIR. Options of -o: ro, noatime,
/// dirsync, noxattr, threads=N (of each queue), max_write=BYTES, ttl=SECONDS, and those of the
/// volume as of lanefs-mount(8): cache_size=SIZE, commit=SECONDS, dirty_expire=SECONDS,
/// order=relaxed, mlogs=N, log=FILE, metrics=SOCKET, create, size=SIZE. Who may open the socket,
/// may read and change all of the volume.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Make the volume first if the image does not exist
    #[arg(long)]
    pub create: bool,
    /// Size of a volume that is made, such as 4G
    #[arg(long, value_parser = size::parse)]
    pub size: Option<u64>,
    /// Where to wait for the virtual machine
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// The name by which the guest mounts the volume, for virtual machines that ask for it, such as
    /// crosvm; QEMU and Cloud Hypervisor have it from their own command lines
    #[arg(long, value_name = "NAME")]
    pub tag: Option<Tag>,
    /// Queues for requests that the virtual machine may use at most [default: one for each
    /// processor, up to 8]
    #[arg(long, value_name = "N")]
    pub queues: Option<usize>,
    /// Options, separated by commas
    #[arg(short, value_name = "OPTS")]
    pub options: Vec<String>,
    /// Memory for pages, inodes and directories [default: a quarter of RAM, or of what a
    /// container allows]
    #[arg(long, value_parser = size::parse)]
    pub cache_size: Option<u64>,
    /// The volume's images or block devices
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
}

/// Options of a mount that mean the same here.
const TAKEN: &[&str] = &[
    "defaults",
    "ro",
    "rw",
    "noatime",
    "atime",
    "relatime",
    "strictatime",
    "dirsync",
    "async",
    "noxattr",
    "threads",
    "max_write",
    "ttl",
    "nowriteback",
    "profile=through",
    "create",
    "size",
    "mlogs",
    "log",
    "metrics",
    "cache_size",
    "commit",
    "dirty_expire",
    "order",
];

/// Options that are the guest's to give.
const GUESTS: &[&str] =
    &["suid", "nosuid", "dev", "nodev", "exec", "noexec", "sync", "nodiratime", "diratime", "lazytime"];

/// The most threads of a queue, if none are named: one takes requests, and the others stand in for
/// those that wait for the device.
const THREADS: usize = 8;

/// Refuses options that could not be kept.
fn check_options(list: &str) -> Result<(), Failure> {
    for option in list.split(',').map(str::trim).filter(|o| !o.is_empty()) {
        let name = option.split('=').next().unwrap_or(option);
        let refused = |why: &str| Err(Failure::new(format_args!("-o {option}: {why}")));
        match () {
            () if TAKEN.contains(&name) || TAKEN.contains(&option) => {}
            () if GUESTS.contains(&name) => {
                return refused("give it to the mount in the guest: mount -t virtiofs -o");
            }
            () if matches!(name, "writeback" | "profile") => {
                return refused(
                    "a guest cannot be told to hand over what it gathers, so its writes go through at once (profile=through)",
                );
            }
            () => {
                return refused(
                    "not known, or without a meaning for a virtual machine; see lanefs-virtiofs(8)",
                );
            }
        }
    }
    Ok(())
}

/// Returns how to connect, in one line.
fn how_to_connect(images: &str, socket: &Path, tag: Option<&Tag>) -> String {
    let tag = tag.map_or("lanefs".into(), Tag::to_string);
    // A comma in a value is doubled there.
    let path = socket.display().to_string().replace(',', ",,");
    format!(
        "{images}: for QEMU: -object memory-backend-memfd,id=mem,size=4G,share=on -numa node,memdev=mem \
         -chardev socket,id=lanefs,path={path} -device vhost-user-fs-pci,chardev=lanefs,tag={tag},queue-size=1024 \
         (size: as of -m); in the guest: mount -t virtiofs {tag} /mnt"
    )
}

/// Serves until the virtual machine ends.
pub fn run(args: &Args) -> Outcome {
    args.options.iter().try_for_each(|list| check_options(list))?;
    let mut plan = mount::plan(&mount::Args {
        create: args.create,
        size: args.size,
        options: args.options.clone(),
        cache_size: args.cache_size,
        images: args.images.clone(),
        ..mount::Args::default()
    })?;
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let queues = args.queues.unwrap_or(processors.min(8));
    if !(1..=MOST_QUEUES).contains(&queues) {
        return Err(Failure::new(format_args!("--queues {queues}: name 1 to {MOST_QUEUES}")));
    }
    let threads = if plan.mount.threads == 0 { THREADS } else { plan.mount.threads.min(1024) };
    let options = Options { tag: args.tag.clone(), queues, threads };
    let config = MountConfig { writeback: false, ..plan.mount.clone() };
    plan.volume.buffers = options.buffers(&config);
    debug_assert!(!config.stateless && !config.allow_root && !config.unchecked, "they were refused");

    mount::start_log(plan.log.as_deref())?;
    // Before there are threads.
    let signals = lanefs_fuse::block_signals().about("cannot wait for signals")?;
    crate::allocator::give_back_soon();
    let (listener, name) = socket::bind(&args.socket, "--socket ")?;
    if plan.create {
        mount::create(&plan)?;
    }
    let volume = image::open_with(&plan.images, &plan.volume)?;
    mount::without_effect(&plan, &volume).iter().for_each(|line| eprintln!("lanefs: {line}"));
    let metrics = plan.metrics.as_deref().map(Metrics::bind).transpose()?;
    let images: Vec<String> = plan.images.iter().map(|i| i.display().to_string()).collect();
    let images = images.join(",");
    let server = Server::new(volume, &config, &options, listener).about(&images)?;
    let stopper = server.stopper();
    let waits = move || {
        loop {
            signals.wait();
            stopper.stop();
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(waits).about("a thread for signals")?;
    if let Some(metrics) = &metrics {
        metrics.serve(server.reporter())?;
    }
    // Nobody may listen.
    let _ = writeln!(std::io::stdout(), "{}", how_to_connect(&images, &args.socket, args.tag.as_ref()));
    let served = server.serve();
    drop(metrics);
    mounted::closing();
    let closed = server.close();
    drop(name);
    served.and(closed).inspect_err(|e| tracing::error!("{images}: {e}")).about(&images)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_could_not_be_kept_are_refused_with_a_reason() {
        let why = |list: &str| check_options(list).map_err(|f| f.message).err().unwrap_or_default();
        assert_eq!(why("ro,noatime,ttl=5,cache_size=64M,profile=through,create,size=1G"), "");
        assert!(why("ro,noexec").contains("-o noexec: give it to the mount in the guest"));
        for gathers in ["writeback", "profile=gather", "profile=stateless"] {
            assert!(why(gathers).contains("go through at once"), "{gathers}");
        }
        for foreign in ["allow_other", "auto_unmount", "loop", "io_uring=on", "x"] {
            assert!(why(foreign).contains("without a meaning"), "{foreign}");
        }
    }

    #[test]
    fn how_to_connect_is_one_line_that_qemu_takes() {
        let tag = "home".parse().ok();
        let line = how_to_connect("a.lane", Path::new("/run/a,b"), tag.as_ref());
        assert!(line.contains("path=/run/a,,b ") && line.contains("tag=home,") && !line.contains('\n'));
    }
}
