//! fio with verification: every block carries its checksum, and a wrong one ends the run.

use super::Place;
use std::process::Command;

pub fn run(place: &Place) -> Result<String, String> {
    let size = format!("{}M", place.amount(256, 24));
    let jobs: &[(&str, &[&str])] = &[
        ("randwrite", &["--rw=randwrite", "--bs=4k", "--ioengine=psync", "--fsync=256"]),
        ("randrw", &["--rw=randrw", "--bsrange=4k-64k", "--blockalign=4k", "--ioengine=psync"]),
        ("direct", &["--rw=randrw", "--bs=4k", "--direct=1", "--ioengine=libaio", "--iodepth=16"]),
        ("direct-write", &["--rw=randwrite", "--bs=16k", "--direct=1", "--ioengine=psync"]),
        ("mmap", &["--rw=randwrite", "--bs=4k", "--ioengine=mmap"]),
        ("seq", &["--rw=write", "--bs=1M", "--ioengine=psync", "--end_fsync=1"]),
        ("seq-direct", &["--rw=write", "--bs=1M", "--direct=1", "--ioengine=libaio", "--iodepth=4"]),
        ("two-jobs", &["--rw=randrw", "--bs=8k", "--numjobs=2", "--ioengine=psync", "--fdatasync=64"]),
    ];
    for (name, arguments) in jobs {
        let mut c = Command::new("fio");
        c.arg(format!("--name={name}")).arg(format!("--size={size}")).args(*arguments);
        c.args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--randseed=3", "--group_reporting"]);
        c.args(["--directory"]).arg(&place.dir).arg("--unlink=1").arg("--minimal");
        let text = place.run(&mut c)?;
        if let Some(line) = text.lines().find(|l| l.contains("verify:") || l.contains("verify failed")) {
            return Err(format!("fio {name}: {line}"));
        }
    }
    Ok(format!("{} jobs of {size}, crc32c, buffered, direct and mmap", jobs.len()))
}
