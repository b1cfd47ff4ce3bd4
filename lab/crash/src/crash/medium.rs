//! L5: faults of the medium itself. A volume is brought to rest (everything synced, a checkpoint
//! behind it); then one block is damaged, and whoever opens the volume must get an error or the
//! truth, never anything else (SEMANTICS E1).
//!
//! Damage: a flipped bit; a block of zeros; a lost write (the block as it was before); a
//! misdirected write (the block's content on another block, which is the case the checksums' seed
//! by address is for); two blocks exchanged; a misdirected read (another block's content is read in
//! the block's place: always, until the block is written, or once). After one that happened once
//! nothing may be lost: who opens the volume next reads all of it.
//!
//! Damage of a superblock or a checkpoint slot may be answered by an older consistent state: then
//! the tree must be one the oracle allows when nothing was acknowledged.

use super::image::BLOCK;
use super::*;
use lanefs_lab_model::generate::Rng;
use lanefs_lab_model::oracle::Found;
use lanefs_store::Result as StoreResult;
use lanefs_store::device::{Payload, ReadReq, WriteReq};
use std::collections::BTreeMap;

/// The file or directory that was read at each path; `None` for an error.
pub type Readings = BTreeMap<Name, Option<(Found, Option<Vec<Name>>)>>;

/// Reads the tree as far as it can be read.
pub fn read_what_can_be(t: &mut dyn Target) -> Readings {
    let mut out = Readings::new();
    let mut todo = vec![Name::from("/")];
    while let Some(path) = todo.pop() {
        if out.len() > 4096 {
            break;
        }
        let Ok(found) = lanefs_lab_model::oracle::observe::one(t, &path) else {
            out.insert(path, None);
            continue;
        };
        let mut names = None;
        if found.mode & libc::S_IFMT == libc::S_IFDIR {
            match t.call(Who::Root, &Op::Readdir { path: path.clone() }) {
                Outcome::List(l) => {
                    for name in l.keys() {
                        let mut full = path.0.clone();
                        if full.last() != Some(&b'/') {
                            full.push(b'/');
                        }
                        full.extend_from_slice(&name.0);
                        todo.push(Name(full));
                    }
                    names = Some(l.into_keys().collect());
                }
                _ => {
                    out.insert(path, None);
                    continue;
                }
            }
        }
        out.insert(path, Some((found, names)));
    }
    out
}

/// Checks that everything that could be read is what it was.
pub fn only_truth(before: &Readings, after: &Readings) -> Result<(), Violation> {
    for (path, reading) in after {
        let Some((f, names)) = reading else { continue };
        let Some(Some((g, was))) = before.get(path) else {
            return Err(broken("E1", format!("{path:?} was never there")));
        };
        if names != was {
            return Err(broken("E1", format!("{path:?} lists {names:?}, it held {was:?}")));
        }
        if (f.mode, f.nlink, f.uid, f.gid, f.size) != (g.mode, g.nlink, g.uid, g.gid, g.size)
            || (&f.bytes, &f.target, &f.xattrs) != (&g.bytes, &g.target, &g.xattrs)
        {
            return Err(broken("E1", format!("{path:?} reads differently, without an error")));
        }
    }
    Ok(())
}

/// A device of which one block is read from elsewhere.
#[derive(Debug)]
struct Astray {
    inner: CowDevice,
    block: usize,
    /// The bytes that are read there.
    other: [u8; BLOCK],
    /// The number of reads that still go astray.
    left: Mutex<u64>,
}

impl Astray {
    fn left(&self) -> std::sync::MutexGuard<'_, u64> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Which block of a request it is.
    fn of(&self, offset: u64, len: usize) -> Option<usize> {
        self.block.checked_sub(offset as usize / BLOCK).filter(|i| *i < len / BLOCK)
    }
}

impl Device for Astray {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> StoreResult<()> {
        self.inner.read(reqs)?;
        for r in reqs {
            let Some(i) = self.of(r.offset, r.data.len()) else { continue };
            let mut left = self.left();
            if *left > 0 {
                *left -= 1;
                r.data[i * BLOCK..(i + 1) * BLOCK].copy_from_slice(&self.other);
            }
        }
        Ok(())
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> StoreResult<()> {
        if reqs.iter().any(|r| self.of(r.offset, r.data.len()).is_some()) {
            *self.left() = 0;
        }
        self.inner.write(reqs)
    }
    fn flush(&self) -> StoreResult<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> StoreResult<()> {
        if self.of(offset, len as usize).is_some() {
            *self.left() = 0;
        }
        self.inner.discard(offset, len)
    }
}

/// A misdirected read: of which device and block, what is read there, and how often.
type Misread = (usize, usize, [u8; BLOCK], u64);

fn devices(images: &[Image], misread: Option<&Misread>) -> Vec<Arc<dyn Device>> {
    let mut devices = plain(images);
    if let Some(&(device, block, other, left)) = misread {
        let inner = CowDevice::new(images[device].clone());
        devices[device] = Arc::new(Astray { inner, block, other, left: Mutex::new(left) });
    }
    devices
}

/// Damages one block in many ways. `reserved` blocks at the start of each device hold superblock
/// and slots.
pub fn run_medium(
    system: &dyn System,
    steps: &[Step],
    config: &Config,
    reserved: usize,
    faults: usize,
    seed: u64,
    counts: &mut Counts,
) -> Result<(), Box<Failure>> {
    let mut steps = steps.to_vec();
    steps.extend([Op::Sync.into(), Op::Checkpoint.into(), Op::Checkpoint.into()]);
    let rec = record(system, &steps, config, counts)?;
    let oracle = Oracle::new(&rec.driven.history, system.order());
    let mut now = rec.bases.clone();
    let mut history: BTreeMap<(usize, usize), Vec<Vec<u8>>> = BTreeMap::new();
    for (i, w) in rec.log.writes.iter().enumerate() {
        states::apply_whole(&rec.log, &[i], &mut now);
        if let Payload::Bytes(b) = &w.payload {
            for (k, block) in b.chunks(BLOCK).enumerate() {
                history.entry((w.device, w.offset as usize / BLOCK + k)).or_default().push(block.to_vec());
            }
        }
    }
    let fail = |v: Violation, how: &str| failure(v, how, (steps.len(), steps.len()), &steps);
    let look = |devices: Vec<Arc<dyn Device>>, counts: &mut Counts| {
        counts.recovered += 1;
        guarded(|| {
            let Ok(mut live) = system.open(devices) else { return Ok(None) };
            let r = read_what_can_be(&mut *live);
            live.kill();
            Ok(Some(r))
        })
    };
    let before = match look(plain(&now), counts) {
        Ok(Some(r)) if r.values().all(Option::is_some) => r,
        Ok(_) => return Err(fail(broken("R1", "the volume at rest can't be read".into()), "at rest")),
        Err(v) => return Err(fail(v, "at rest")),
    };
    let written: Vec<(usize, usize)> = history.keys().copied().collect();
    let mut rng = Rng::new(seed);
    for _ in 0..faults {
        let mut images = now.clone();
        let (device, block) = *rng.pick(&written);
        let other = *rng.pick(&written);
        let mut misread: Option<Misread> = None;
        let how = match rng.below(7) {
            0 => {
                let mut b = *images[device].block(block);
                let bit = rng.below(BLOCK as u64 * 8) as usize;
                b[bit / 8] ^= 1 << (bit % 8);
                images[device].put(block, &b, 0xff);
                format!("bit {bit} of block {device}:{block} flipped")
            }
            1 => {
                images[device].put(block, &[0; BLOCK], 0xff);
                format!("block {device}:{block} zeroed")
            }
            2 => {
                let versions = &history[&(device, block)];
                let old = if versions.len() > 1 {
                    versions[rng.below(versions.len() as u64 - 1) as usize].clone()
                } else {
                    rec.bases[device].block(block).to_vec()
                };
                images[device].put(block, &old, 0xff);
                format!("block {device}:{block} as it was before")
            }
            3 => {
                let b = *images[other.0].block(other.1);
                images[device].put(block, &b, 0xff);
                format!("block {}:{} also on {device}:{block}", other.0, other.1)
            }
            n @ (4 | 5) => {
                let bytes = *images[other.0].block(other.1);
                misread = Some((device, block, bytes, if n == 4 { 1 } else { u64::MAX }));
                let often = if n == 4 { "once" } else { "always" };
                format!("block {}:{} is read {often} in place of {device}:{block}", other.0, other.1)
            }
            _ => {
                let (a, b) = (*images[device].block(block), *images[other.0].block(other.1));
                images[device].put(block, &b, 0xff);
                images[other.0].put(other.1, &a, 0xff);
                format!("blocks {device}:{block} and {}:{} exchanged", other.0, other.1)
            }
        };
        let read = misread.map_or(0, |m| (m.0 ^ m.1 << 8 ^ other.1 << 32) as u64 ^ m.3 << 63);
        counts.state(images.iter().fold(read, |h: u64, d| h.rotate_left(17) ^ d.hash()));
        counts.checks += 1;
        let damaged = devices(&images, misread.as_ref());
        let after = match look(damaged.clone(), counts) {
            Ok(r) => r.unwrap_or_default(),
            Err(v) => return Err(fail(v, &how)),
        };
        if misread.is_some_and(|m| m.3 == 1) {
            let verdict = only_truth(&before, &after).and_then(|()| {
                let next = look(damaged, counts)?.unwrap_or_default();
                only_truth(&before, &next)?;
                if next.len() == before.len() && next.values().all(Option::is_some) {
                    return Ok(());
                }
                Err(broken("E1", "what could not be read once cannot be read by who comes next".into()))
            });
            verdict.map_err(|v| fail(v, &how))?;
            continue;
        }
        let Err(v) = only_truth(&before, &after) else { continue };
        let at_root = block < reserved || how.contains("exchanged") && other.1 < reserved;
        let older = at_root
            && opened(system, devices(&images, misread.as_ref()), counts)
                .is_ok_and(|o| oracle.check(0, rec.driven.history.steps.len(), &o).is_ok());
        if !older {
            return Err(fail(v, &how));
        }
    }
    Ok(())
}
