//! A small store of keys and values: an append-only log, made durable by fsync, compacted by
//! writing anew and renaming over.
//!
//!     cargo run -p lanefs --example kvlog -- IMAGE set KEY VALUE
//!     cargo run -p lanefs --example kvlog -- IMAGE get KEY
//!     cargo run -p lanefs --example kvlog -- IMAGE compact
//!
//! A record is the length of key and value (4 bytes each, little-endian), the key, the value. What
//! follows the last whole record was under way when the program or the machine stopped; nobody was
//! told that it is kept.

use lanefs::{Fs, MountOptions, OpenOptions, Result, Volume};
use std::collections::BTreeMap;

const LOG: &str = "/log";

/// The open store: what the log says, and the log.
pub struct KvLog {
    fs: Fs,
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    log: lanefs::File,
    end: u64,
}

fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = (key.len() as u32).to_le_bytes().to_vec();
    bytes.extend((value.len() as u32).to_le_bytes());
    bytes.extend(key);
    bytes.extend(value);
    bytes
}

/// The next record and what is behind it; `None` if it is not whole.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (key_len, rest) = bytes.split_first_chunk::<4>()?;
    let (value_len, rest) = rest.split_first_chunk::<4>()?;
    let (key, rest) = rest.split_at_checked(u32::from_le_bytes(*key_len) as usize)?;
    let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value_len) as usize)?;
    Some((key, value, rest))
}

impl KvLog {
    /// Opens the store of a volume, making it if there is none.
    pub fn open(fs: Fs) -> Result<KvLog> {
        let log = fs.open(LOG, OpenOptions::new().read(true).write(true).create(true))?;
        let bytes = fs.read(LOG)?;
        let (mut rest, mut map) = (&bytes[..], BTreeMap::new());
        while let Some((key, value, behind)) = split(rest) {
            map.insert(key.to_vec(), value.to_vec());
            rest = behind;
        }
        let end = (bytes.len() - rest.len()) as u64;
        log.set_len(end)?;
        Ok(KvLog { fs, map, log, end })
    }

    /// Sets a key. When this returns, it is kept whatever happens.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let bytes = record(key, value);
        self.log.write_all_at(&bytes, self.end)?;
        self.log.sync_data()?;
        self.end += bytes.len() as u64;
        self.map.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.map.get(key).map(Vec::as_slice)
    }

    /// Writes a log without what was overwritten. A crash leaves the old one or the new one, whole.
    pub fn compact(&mut self) -> Result<()> {
        let bytes: Vec<u8> = self.map.iter().flat_map(|(k, v)| record(k, v)).collect();
        let fresh = self.fs.create("/log.new")?;
        fresh.write_all_at(&bytes, 0)?;
        fresh.sync_all()?;
        self.fs.rename("/log.new", LOG)?;
        (self.log, self.end) = (fresh, bytes.len() as u64);
        Ok(())
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some((image, command)) = words.split_first() else {
        eprintln!("usage: kvlog IMAGE set KEY VALUE | get KEY | compact");
        std::process::exit(2);
    };
    if !std::path::Path::new(image).exists() {
        Volume::create(&[image], 64 << 20)?;
    }
    let volume = Volume::open(&[image], &MountOptions::default())?;
    let mut store = KvLog::open(volume.fs())?;
    match command {
        ["set", key, value] => store.set(key.as_bytes(), value.as_bytes())?,
        ["get", key] => match store.get(key.as_bytes()) {
            Some(value) => println!("{}", String::from_utf8_lossy(value)),
            None => println!("{key} is not set"),
        },
        ["compact"] => store.compact()?,
        _ => eprintln!("kvlog: set KEY VALUE, get KEY or compact"),
    }
    drop(store);
    volume.close()
}
