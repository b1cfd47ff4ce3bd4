//! The kernel developers' tests of file systems (xfstests) on a mounted volume. They come in no
//! registry: `--source` names a folder in which they were built.
//!
//! They run in a folder of links to that one, so that it stays as it is; of it `common/rc` alone is
//! a copy, with what they have to know of a file system that they do not know ([`PATCHES`]). All
//! programs that take a file system's name, such as mount(8), are found in a folder of ours first.
//! Each test has two volumes on loop devices, which `lanefs fsck` checks behind it.

use crate::programs::child::{self, tail};
use crate::programs::volume::build;
use crate::run::has;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const USAGE: &str = "usage: cargo xtask xfstests --source DIR [--options MOUNT-OPTIONS] [--seconds N] \
                     [--group NAME | TEST..]; DIR is a clone of xfstests in which make was run; \
                     without a test: --group quick";

/// Bytes of each of the two images, which are sparse.
const SIZE: u64 = 6 << 30;

/// What is put in place of what in `common/rc`.
const PATCHES: &[(&str, &str)] = &[
    // df(1) says what the kernel calls a mount of a block device.
    ("        sed -e 's/nfs4/nfs/'", "        sed -e 's/fuseblk.lanefs/lanefs/' -e 's/nfs4/nfs/'"),
    ("findmnt -rncv -S $dev -t $fstype -o TARGET", "findmnt -rncv -S $dev -o TARGET"),
    ("findmnt -rncv -t $fstype -o TARGET $dir", "findmnt -rncv -o TARGET $dir"),
    // A volume is as large as its device.
    (
        "\ttmpfs)\n\t\tlocal free_mem=`_free_memory_bytes`",
        "\tlanefs)\n\t\tlanefs_resize $fssize && mkfs.lanefs $SCRATCH_DEV\n\t\t;;\n\
         \ttmpfs)\n\t\tlocal free_mem=`_free_memory_bytes`",
    ),
    ("_scratch_mkfs()\n{\n", "_scratch_mkfs()\n{\n\tlanefs_resize $LANEFS_SIZE\n"),
    // As journals do, the log keeps names in order.
    ("_has_metadata_journaling()\n{\n", "_has_metadata_journaling()\n{\n\treturn 0\n"),
];

/// Programs that the tests find before those of the system; what stands between two `@` is put in.
const PROGRAMS: &[(&str, &str)] = &[
    (
        "mount",
        "for a; do [ \"$a\" = lanefs ] && ours=1; done\n\
         [ \"$ours\" ] || exec @mount@ \"$@\"\n\
         options=@options@ places=()\n\
         while [ $# -gt 0 ]; do\n\
           case $1 in -t) shift ;; -o) options=$options,$2; shift ;; -o*) options=$options,${1#-o} ;; \
             *) places+=(\"$1\") ;; esac\n\
           shift\n\
         done\n\
         exec -a mount.lanefs @lanefs@ \"${places[@]}\" -o \"$options\"\n",
    ),
    ("mkfs.lanefs", "umount \"$1\" 2> /dev/null\nexec @lanefs@ mkfs --force --quiet \"$1\"\n"),
    ("fsck.lanefs", "exec @lanefs@ fsck \"${!#}\"\n"),
    (
        "lanefs_resize",
        "umount $SCRATCH_DEV 2> /dev/null\ntruncate -s $1 @scratch@ && losetup -c $SCRATCH_DEV\n",
    ),
];

const TWICE: &str = "a volume is mounted once; mount --bind shows it elsewhere, too";
const UNMAPPED: &str =
    "O_TMPFILE by a user whom an idmapped mount does not map is EOVERFLOW with FUSE, and no error elsewhere";

/// What fsstress leaves out: a ring of io_uring holds files open for a moment after its process has
/// ended, and the mount is busy then.
const AVOID: &str = "-f uring_read=0 -f uring_write=0";

/// Tests that do not pass for a reason that is known.
const KNOWN: &[(&str, &str)] = &[
    ("generic/003", "a read that the kernel answers from its cache leaves the access time as it is"),
    ("generic/042", "mount(8) does not find out by itself that an image is a volume of LaneFS"),
    ("generic/192", "as generic/003"),
    ("generic/275", "what is kept back for what the kernel gathers is filled up first (docs/MOUNT.md)"),
    ("generic/277", "where the kernel gathers writes it keeps ctime itself, and chattr(1) leaves it"),
    ("generic/361", "a write waits where a block device has no space for it (SEMANTICS E7)"),
    ("generic/409", TWICE),
    ("generic/410", TWICE),
    ("generic/411", TWICE),
    ("generic/417", "what was mounted for reading only is not made writable by a remount"),
    ("generic/424", "the kernel does not ask a FUSE file system for the attributes of statx(2)"),
    ("generic/537", "there is no mount option norecovery: a volume mounted with ro is recovered in memory"),
    ("generic/589", TWICE),
    (
        "generic/622",
        "times that nobody syncs are written by the server's clock, not when the kernel lets go of them",
    ),
    ("generic/633", UNMAPPED),
    ("generic/696", UNMAPPED),
    ("generic/697", UNMAPPED),
    ("generic/705", "filefrag(8) sees no extents through FUSE"),
    ("generic/732", TWICE),
];

/// What the command line asked for.
struct Asked {
    source: PathBuf,
    options: String,
    limit: Duration,
    tests: Vec<String>,
}

/// What is to be undone: mounts, loop devices, the folder.
struct Stage {
    dir: PathBuf,
    devices: Vec<String>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        for mount in ["test", "scratch"] {
            let _ = Command::new("umount").arg("-l").arg(self.dir.join(mount)).output();
        }
        for device in &self.devices {
            let _ = Command::new("losetup").args(["-d", device]).output();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// What became of a test.
enum Outcome {
    Passed,
    NotRun(String),
    Failed(String),
}

/// Runs the tests; an error says which did not pass that are not known to, and which passed
/// although they are known not to.
pub fn main(arguments: &[&str]) -> Result<(), String> {
    let asked = parse(arguments)?;
    let lanefs = build()?;
    let stage = prepare(&asked, &lanefs)?;
    let (mut passed, mut not_run, mut known) = (0, BTreeMap::<String, usize>::new(), 0);
    let mut bad = Vec::new();
    for test in &asked.tests {
        let reason = KNOWN.iter().find(|k| k.0 == test).map(|k| k.1);
        match (run_one(&stage, test, asked.limit)?, reason) {
            (Outcome::Passed, None) => {
                passed += 1;
                println!("{test}  passed");
            }
            (Outcome::Passed, Some(_)) => {
                println!("{test}  PASSED, and is known not to");
                bad.push(test.as_str());
            }
            (Outcome::NotRun(why), _) => {
                println!("{test}  not run: {why}");
                *not_run.entry(why).or_default() += 1;
            }
            (Outcome::Failed(_), Some(why)) => {
                known += 1;
                println!("{test}  does not pass, as is known: {why}");
            }
            (Outcome::Failed(said), None) => {
                println!("{test}  FAILED\n{said}");
                bad.push(test);
            }
        }
    }
    println!("\nnot run:");
    not_run.iter().for_each(|(why, n)| println!("{n:5}  {why}"));
    let skipped = not_run.values().sum::<usize>();
    let sum = format!("{passed} passed, {skipped} not run, {known} known not to pass, {} bad", bad.len());
    println!("{sum}");
    if bad.is_empty() { Ok(()) } else { Err(format!("{sum}: {}", bad.join(" "))) }
}

fn parse(arguments: &[&str]) -> Result<Asked, String> {
    let (mut source, mut options, mut seconds) = (None, "allow_other".to_string(), 300);
    let (mut group, mut tests) = (None, Vec::new());
    let mut rest = arguments.iter();
    let value = |v: Option<&&str>| v.map(|v| v.to_string()).ok_or(USAGE.to_string());
    while let Some(a) = rest.next() {
        match *a {
            "--source" => source = Some(PathBuf::from(value(rest.next())?)),
            "--options" => options = format!("{options},{}", value(rest.next())?),
            "--seconds" => seconds = value(rest.next())?.parse().map_err(|_| USAGE)?,
            "--group" => group = Some(value(rest.next())?),
            test if test.starts_with("generic/") => tests.push(test.to_string()),
            _ => return Err(USAGE.into()),
        }
    }
    let source = source.ok_or(USAGE)?;
    let source = source.canonicalize().map_err(|e| format!("{}: {e}", source.display()))?;
    if !source.join("ltp/fsstress").is_file() {
        return Err(format!("{}: no tests were built here; run make in it", source.display()));
    }
    for (program, package) in [("xfs_io", "xfsprogs"), ("setfacl", "acl"), ("setfattr", "attr"), ("bc", "bc")]
    {
        if !has(program) {
            return Err(format!("install {package} first"));
        }
    }
    if tests.is_empty() {
        tests = members(&source, group.as_deref().unwrap_or("quick"))?;
    }
    Ok(Asked { source, options, limit: Duration::from_secs(seconds), tests })
}

/// Returns the tests of a group, in their order.
fn members(source: &Path, group: &str) -> Result<Vec<String>, String> {
    let list = source.join("tests/generic/group.list");
    let text = fs::read_to_string(&list).map_err(|e| format!("{}: {e}", list.display()))?;
    let of = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next().filter(|n| n.bytes().all(|b| b.is_ascii_digit()))?;
        words.any(|w| w == group).then(|| format!("generic/{name}"))
    };
    let all: Vec<String> = text.lines().filter_map(of).collect();
    if all.is_empty() { Err(format!("{group}: there is no such group")) } else { Ok(all) }
}

/// Makes the folder of links, the two volumes and their devices.
fn prepare(asked: &Asked, lanefs: &Path) -> Result<Stage, String> {
    let dir = std::env::temp_dir().join(format!("lanefs-xfstests-{}", std::process::id()));
    let mut stage = Stage { dir: dir.clone(), devices: Vec::new() };
    let io = |e: std::io::Error| format!("{}: {e}", dir.display());
    for sub in ["", "tests.run", "tests.run/common", "bin", "test", "scratch", "results"] {
        fs::create_dir_all(dir.join(sub)).map_err(io)?;
    }
    let run = dir.join("tests.run");
    let links = |from: &Path, to: &Path, but: &str| -> Result<(), String> {
        for entry in fs::read_dir(from).map_err(io)? {
            let entry = entry.map_err(io)?;
            if entry.file_name() != but {
                symlink(entry.path(), to.join(entry.file_name())).map_err(io)?;
            }
        }
        Ok(())
    };
    links(&asked.source, &run, "common")?;
    links(&asked.source.join("common"), &run.join("common"), "rc")?;
    let rc = asked.source.join("common/rc");
    let mut text = fs::read_to_string(&rc).map_err(|e| format!("{}: {e}", rc.display()))?;
    for (old, new) in PATCHES {
        if !text.contains(old) {
            return Err(format!("{}: another version of the tests: {old:?} is not there", rc.display()));
        }
        text = text.replacen(old, new, 1);
    }
    fs::write(run.join("common/rc"), text).map_err(io)?;
    for name in ["test", "scratch"] {
        let image = dir.join(format!("{name}.lane"));
        let mut mkfs = Command::new(lanefs);
        mkfs.args(["mkfs", "--quiet", "--size", &SIZE.to_string()]).arg(&image);
        child::succeed(&mut mkfs, &dir, Duration::from_secs(60))?;
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show"]).arg(&image);
        let device = child::succeed(&mut losetup, &dir, Duration::from_secs(60))?;
        stage.devices.push(device.trim().to_string());
    }
    let mount = ["/usr/bin/mount", "/bin/mount"].into_iter().find(|m| Path::new(m).is_file());
    let words = [
        ("@mount@", mount.ok_or("mount(8) is not there")?.to_string()),
        ("@lanefs@", lanefs.display().to_string()),
        ("@options@", asked.options.clone()),
        ("@scratch@", dir.join("scratch.lane").display().to_string()),
    ];
    for (name, script) in PROGRAMS {
        let path = dir.join("bin").join(name);
        let script = words.iter().fold(script.to_string(), |s, (word, with)| s.replace(word, with));
        fs::write(&path, format!("#!/bin/bash\n{script}")).map_err(io)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(io)?;
    }
    let config = format!(
        "export TEST_DEV={}\nexport TEST_DIR={}\nexport SCRATCH_DEV={}\nexport SCRATCH_MNT={}\n\
         export FSTYP=lanefs\nexport RESULT_BASE={}\nexport LANEFS_SIZE={SIZE}\n\
         export FSSTRESS_AVOID=\"{AVOID}\"\n",
        stage.devices[0],
        dir.join("test").display(),
        stage.devices[1],
        dir.join("scratch").display(),
        dir.join("results").display(),
    );
    fs::write(dir.join("local.config"), config).map_err(io)?;
    Ok(stage)
}

/// Runs a test in its time.
fn run_one(stage: &Stage, test: &str, limit: Duration) -> Result<Outcome, String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut check = Command::new("./check");
    check.arg(test).current_dir(stage.dir.join("tests.run"));
    check.env("HOST_OPTIONS", stage.dir.join("local.config"));
    check.env("PATH", format!("{}:{path}", stage.dir.join("bin").display()));
    let text = match child::output(&mut check, &stage.dir, limit) {
        Ok(out) => out.text,
        Err(e) => {
            for mount in ["scratch", "test"] {
                let _ = Command::new("umount").arg("-l").arg(stage.dir.join(mount)).output();
            }
            return Ok(Outcome::Failed(e));
        }
    };
    if let Some(why) = text.lines().find_map(|l| l.split_once("[not run] ").map(|w| w.1)) {
        return Ok(Outcome::NotRun(why.trim().to_string()));
    }
    if text.lines().any(|l| l.starts_with("Passed all 1 tests")) {
        return Ok(Outcome::Passed);
    }
    if text.contains("ulimit: ") && text.contains("cannot modify limit") {
        return Ok(Outcome::NotRun("this machine does not let limits be raised".into()));
    }
    Ok(Outcome::Failed(tail(&text, 30)))
}
