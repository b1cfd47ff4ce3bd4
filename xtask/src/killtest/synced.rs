//! `cargo xtask killtest synced [--rounds N] [--seed S] [--order ordered|relaxed]`: rounds on a
//! volume that root mounts, by turns an image and a block device, of which the kernel passes
//! syncfs(2) on to the server. Nobody calls fsync: two threads make, rename, replace, write over,
//! extend and remove hundreds of files and call syncfs behind them, over and over. After the kill
//! all that was done before a syncfs that had returned must be there. Takes root.

use super::{Totals, child, start};
use crate::programs::volume::{self, Volume};
use lanefs_sync::random::Rng;
use std::path::Path;
use std::time::{Duration, Instant};

/// Sizes of the volumes: much that checkpoints and the cleaner do between two syncfs, and little.
const SIZES: [&str; 2] = ["128M", "1G"];
/// Whether one after the other is an image or on a block device.
const ON_DEVICE: [bool; 4] = [false, true, true, false];
/// Rounds that one volume lives for.
const ROUNDS: u64 = 8;

/// The command.
pub fn main(rounds: u64, ordered: bool, seed: u64) -> Result<(), String> {
    let lanefs = volume::build()?;
    let (mut random, mut totals) = (Rng::at(seed), Totals::default());
    let mut volume: Option<Volume> = None;
    for n in 0..rounds {
        if n % ROUNDS == 0
            && let Some(mut before) = volume.take()
        {
            before.umount()?;
            before.fsck()?;
        }
        let v = match &mut volume {
            Some(v) => v,
            None => {
                let order = if ordered { "ordered" } else { "relaxed" };
                let size = SIZES[(n / ROUNDS) as usize % SIZES.len()];
                let on_device = ON_DEVICE[(n / ROUNDS) as usize % ON_DEVICE.len()];
                let make = if on_device { Volume::make_on_device } else { Volume::make };
                let mut made = make(&lanefs, size, &["-o", &format!("order={order}")])?;
                made.mount()?;
                volume.insert(made)
            }
        };
        let start = Instant::now();
        round(v, n, &mut random, &mut totals).map_err(|e| {
            let kept = std::env::temp_dir().join(format!("lanefs-killtest-{seed}-{n}.lane"));
            let copied = std::fs::copy(v.killed(), &kept).or_else(|_| std::fs::copy(v.image(), &kept));
            let kept = copied.map_or(String::new(), |_| format!("\nas the kill left it: {}", kept.display()));
            format!("round {n} of seed {seed} (synced): {e}{kept}\n{}", v.messages())
        })?;
        totals.rounds += 1;
        let seconds = start.elapsed().as_secs_f64();
        println!("round {n:>3}  synced {seconds:>5.1} s  {:>7} acknowledged", totals.acknowledged);
    }
    if let Some(mut last) = volume {
        last.umount()?;
        last.fsck()?;
    }
    println!(
        "\n{} rounds: fsck clean after each kill; {} changes acknowledged by syncfs, {} files ({:.0} MB) found with their \
         content, {} removals kept; slowest mount after a kill {:.0} ms",
        totals.rounds,
        totals.acknowledged,
        totals.checked.files,
        totals.checked.bytes as f64 / 1e6,
        totals.checked.removed,
        totals.slowest_mount.as_secs_f64() * 1e3,
    );
    if totals.rounds > 0 && totals.acknowledged == 0 {
        return Err("no syncfs came to its end before a kill".into());
    }
    Ok(())
}

/// One round: work, kill, check, mount, compare.
fn round(v: &mut Volume, n: u64, random: &mut Rng, totals: &mut Totals) -> Result<(), String> {
    let io = |e: std::io::Error| e.to_string();
    let (mnt, outside) = (v.mnt(), v.outside().join(format!("round{n}")));
    std::fs::create_dir_all(&outside).map_err(io)?;
    let seed = (random.bits() >> 40).to_string();
    let (prefix, log) = (format!("round{n}"), outside.join("writer.log"));
    let mut writer = start(
        &["killtest-writer"],
        &[&mnt, Path::new(&prefix), &outside, Path::new("2"), Path::new(&seed), Path::new("synced")],
        &log,
    )?;
    std::thread::sleep(Duration::from_millis(100 + random.below(4000)));
    if let Some(status) = writer.0.try_wait().map_err(io)? {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        return Err(format!("the writer ended before the kill: {status}\n{said}"));
    }
    v.kill_server()?;
    if child::wait(&mut writer.0, Duration::from_secs(30)).map_err(io)?.is_none() {
        let stacks = child::end_tree(&mut writer.0);
        return Err(format!("the writer still runs 30 s after the kill\n{stacks}"));
    }
    drop(writer);
    v.kill()?;
    std::fs::copy(v.image(), v.killed()).map_err(io)?;
    totals.recover(v, random, n)?;
    let before = mnt.join(format!("round{}", n.wrapping_sub(1)));
    if before.exists() {
        std::fs::remove_dir_all(&before).map_err(|e| format!("removing {}: {e}", before.display()))?;
    }
    Ok(())
}
