//! The volumes that this process has open for SQLite. Each is opened once, whoever of the
//! connections comes first, and closed with the last of their files.
//!
//! V1. Opening and closing happen under the table's lock, so that nobody finds a volume that is
//!     being closed, or opens one that is.

use crate::locks::Locks;
use crate::shm::Shm;
use lanefs::{CreateOptions, Fs, Ino, MountOptions, Volume, size};
use lanefs_fuse::{ServedMount, serve_mount};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What the parameters of a name say of its volume.
#[derive(Default)]
pub struct Parameters {
    pub volume: Option<String>,
    /// Where a mount of it is to be served meanwhile.
    pub mount: Option<String>,
    /// The others that there are.
    pub options: Vec<(&'static str, String)>,
}

/// The parameters beside `volume` and `mount`.
pub const OPTIONS: &[&str] = &["size", "order", "cache_size", "commit", "dirty_expire", "noatime", "ro"];

/// Returns the images that a key names.
fn images(key: &str) -> Vec<PathBuf> {
    key.split(',').map(PathBuf::from).collect()
}

/// What connections to one database have in common.
#[derive(Default)]
pub struct Database {
    pub locks: Mutex<Locks>,
    pub shm: Mutex<Shm>,
    /// Whether the database was synced since its journal was last removed. Relaxed: set and taken
    /// by the connection that writes, which has the database to itself.
    pub synced: AtomicBool,
}

/// An open volume.
pub struct Opened {
    pub fs: Fs,
    volume: Volume,
    /// A mount of it, served by this process.
    mount: Mutex<Option<ServedMount>>,
    /// By inode, so that two names of a file are one database.
    databases: Mutex<HashMap<Ino, Weak<Database>>>,
}

impl Opened {
    fn new(volume: Volume) -> Opened {
        Opened { fs: volume.fs(), volume, mount: Mutex::new(None), databases: Mutex::default() }
    }

    /// Returns what the connections to a database have in common.
    pub fn database(&self, ino: Ino) -> Arc<Database> {
        let mut all = locked(&self.databases);
        if let Some(database) = all.get(&ino).and_then(Weak::upgrade) {
            return database;
        }
        all.retain(|_, d| d.strong_count() > 0);
        let database = Arc::new(Database::default());
        all.insert(ino, Arc::downgrade(&database));
        database
    }

    /// Serves a mount of the volume, unless there is one.
    fn serve(&self, dir: &Path) -> std::io::Result<()> {
        let mut mount = locked(&self.mount);
        if mount.is_none() {
            *mount = Some(serve_mount(&self.volume, dir)?);
        }
        Ok(())
    }

    /// Unmounts and closes it.
    fn close(&self) -> lanefs::Result<()> {
        drop(locked(&self.mount).take());
        self.volume.close()
    }

    /// Returns whether the database at a path was synced since this was last asked.
    pub fn take_synced(&self, path: &str) -> bool {
        let Ok(stat) = self.fs.stat(path) else { return false };
        let database = locked(&self.databases).get(&stat.ino).and_then(Weak::upgrade);
        database.is_some_and(|d| d.synced.swap(false, Ordering::Relaxed))
    }
}

/// An entry of the table.
struct Entry {
    opened: Arc<Opened>,
    /// The files that are open in it.
    users: usize,
    /// Whether a program has lent it: then it is not closed here.
    lent: bool,
}

static TABLE: Mutex<Option<HashMap<String, Entry>>> = Mutex::new(None);

/// Locks a mutex; what a panic left behind is whole, since each change is one step.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `f` with the table.
fn with_table<T>(f: impl FnOnce(&mut HashMap<String, Entry>) -> T) -> T {
    f(locked(&TABLE).get_or_insert_with(HashMap::new))
}

/// Lends an open volume to SQLite by a name: `file:app.db?vfs=lanefs&volume=NAME`. It stays the
/// caller's to close, after [`unregister`]. False if the name is taken, is empty, or has `:/` in
/// it.
pub fn register(name: &str, volume: &Volume) -> bool {
    with_table(|table| {
        if name.is_empty() || name.contains(":/") || table.contains_key(name) {
            return false;
        }
        let opened = Arc::new(Opened::new(volume.clone()));
        table.insert(name.to_string(), Entry { opened, users: 0, lent: true });
        true
    })
}

/// Takes back what [`register`] lent. False if there is no such name, or a database of it is open.
pub fn unregister(name: &str) -> bool {
    with_table(|table| match table.get(name) {
        Some(entry) if entry.lent && entry.users == 0 => table.remove(name).is_some(),
        _ => false,
    })
}

/// Returns whether a volume was lent by this name.
pub fn is_registered(name: &str) -> bool {
    with_table(|table| table.get(name).is_some_and(|e| e.lent))
}

/// Returns the key of the only volume that is open.
pub fn only_one() -> Result<String, String> {
    with_table(|table| match table.keys().collect::<Vec<_>>()[..] {
        [key] => Ok(key.clone()),
        [] => Err("no volume is named: add &volume=IMAGE to the name of the database".into()),
        _ => Err("several volumes are open: add &volume=IMAGE to the name of the database".into()),
    })
}

/// A volume that is kept open.
pub struct Use {
    key: String,
    pub opened: Arc<Opened>,
}

/// Opens a volume, or finds it open; its options are those of whoever came first.
pub fn open(key: &str, parameters: &Parameters) -> Result<Use, String> {
    with_table(|table| {
        if !table.contains_key(key) {
            let opened = Arc::new(Opened::new(open_images(key, parameters)?));
            table.insert(key.to_string(), Entry { opened, users: 0, lent: false });
        }
        let entry = table.get_mut(key).ok_or("no such volume")?;
        if let Some(dir) = &parameters.mount
            && let Err(e) = entry.opened.serve(Path::new(dir))
        {
            if entry.users == 0 && !entry.lent {
                // Nobody else has it. The error of mounting is the one to tell.
                let _ = table.remove(key).map(|e| e.opened.close());
            }
            return Err(format!("mount={dir}: {e}"));
        }
        entry.users += 1;
        Ok(Use { key: key.to_string(), opened: Arc::clone(&entry.opened) })
    })
}

/// Calls `f` with a volume that is open.
pub fn find(key: &str) -> Option<Arc<Opened>> {
    with_table(|table| table.get(key).map(|e| Arc::clone(&e.opened)))
}

/// Opens the images of a volume, which are made first if they are missing and a size is given.
fn open_images(key: &str, parameters: &Parameters) -> Result<Volume, String> {
    let mut mount = MountOptions::default();
    let mut wanted = None;
    for (name, value) in &parameters.options {
        match *name {
            "size" => wanted = Some(size::parse(value).map_err(|e| format!("size: {e}"))?),
            "ro" | "noatime" if matches!(value.as_str(), "0" | "no" | "off") => {}
            "ro" | "noatime" => drop(mount.set(name, None).map_err(|e| e.to_string())?),
            _ => drop(mount.set(name, Some(value)).map_err(|e| e.to_string())?),
        }
    }
    let images = self::images(key);
    let missing = images.iter().any(|i| !i.exists());
    if let Some(bytes) = wanted.filter(|_| missing && !mount.read_only) {
        CreateOptions::new().create(&images, bytes).map_err(|e| format!("{key}: {e}"))?;
    }
    Volume::open(&images, &mount).map_err(|e| match missing {
        true => format!("{key}: {e}; add &size=1G to make it"),
        false => format!("{key}: {e}"),
    })
}

impl Use {
    /// Lets go of the volume, and closes it if this was the last use. The error is that of closing.
    pub fn end(self) -> Result<(), String> {
        with_table(|table| {
            let Some(entry) = table.get_mut(&self.key) else { return Ok(()) };
            debug_assert!(entry.users > 0, "it was in use");
            entry.users = entry.users.saturating_sub(1);
            if entry.users > 0 {
                return Ok(());
            }
            if entry.lent {
                drop(locked(&entry.opened.mount).take());
                return Ok(());
            }
            let last = table.remove(&self.key);
            let closed = last.map_or(Ok(()), |e| e.opened.close());
            closed.map_err(|e| format!("{}: {e}", self.key))
        })
    }
}
