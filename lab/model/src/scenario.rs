//! Scenarios: sequences of calls written once and run anywhere, plain on a volume, on a directory
//! of the kernel, on a FUSE mount, and under crash simulation. [`script`] turns a few words a line
//! into steps.

use crate::op::{Op, Step, Tagged};

/// A named sequence of calls.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The subject of the sequence.
    pub name: String,
    /// The calls.
    pub steps: Vec<Step>,
    /// The number of them that only prepare.
    pub setup: usize,
}

/// The handle a script uses for calls that open and close by themselves.
const TEMP: u8 = 9;

/// Steps from a script: commands separated by `;` or line ends, `#` starts a comment. Every write
/// gets a tag of its own.
///
/// ```text
/// creat P [LEN]    write P OFF LEN    append P LEN      trunc P SIZE     punch P OFF LEN   zero P OFF LEN
/// falloc P OFF LEN grow P OFF LEN     mkdir P           rmdir P          unlink P          link A B
/// symlink T P      rename A B         exchange A B      noreplace A B    chmod P OCTAL     setxattr P NAME LEN
/// rmxattr P NAME   utimens P NANOS    fsync P           fdatasync P      fsyncdir P        sync
/// open FD P        tmpfile FD P       linkfd FD P       pwrite FD OFF LEN                  fsyncfd FD
/// chown P UID GID  setfacl P LEN      rmfacl P
/// close FD         read P             stat P            ls P             tick              ckpt      remount
/// whiteout A B
/// ```
pub fn script(text: &str) -> Result<Vec<Step>, String> {
    let mut out: Vec<Op> = Vec::new();
    let mut tag = 0;
    let lines = text.lines().map(|l| l.split('#').next().unwrap_or_default());
    for command in lines.flat_map(|l| l.split(';')).map(str::trim).filter(|c| !c.is_empty()) {
        let w: Vec<&str> = command.split_whitespace().collect();
        let bad = || format!("can't read the command {command:?}");
        let arg = |i: usize| w.get(i).copied().ok_or_else(bad);
        let num = |i: usize| arg(i)?.parse::<u64>().map_err(|_| bad());
        let path = |i: usize| arg(i).map(|p| p.into());
        let fd = |i: usize| num(i).map(|n| n as u8);
        let mut data = |len: u64| {
            tag += 1;
            Tagged { tag, len: len as u32 }
        };
        let mut with = |i: usize, flags: i32, ops: Vec<Op>| -> Result<(), String> {
            out.push(Op::Open { fd: TEMP, path: path(i)?, flags, mode: 0o644 });
            out.extend(ops);
            out.push(Op::Close { fd: TEMP });
            Ok(())
        };
        let falloc = |mode: i32| -> Result<Vec<Op>, String> {
            Ok(vec![Op::Fallocate { fd: TEMP, mode, offset: num(2)?, len: num(3)? }])
        };
        let rename = |flags| Ok::<_, String>(Op::Rename { old: path(1)?, new: path(2)?, flags });
        match arg(0)? {
            "creat" => {
                let ops = match w.get(2) {
                    Some(_) => vec![Op::Write { fd: TEMP, data: data(num(2)?) }],
                    None => vec![],
                };
                with(1, libc::O_CREAT | libc::O_RDWR, ops)?;
            }
            "write" => {
                let op = Op::Pwrite { fd: TEMP, offset: num(2)?, data: data(num(3)?) };
                with(1, libc::O_RDWR, vec![op])?;
            }
            "append" => {
                let op = Op::Write { fd: TEMP, data: data(num(2)?) };
                with(1, libc::O_WRONLY | libc::O_APPEND, vec![op])?;
            }
            "punch" => with(1, libc::O_RDWR, falloc(3)?)?,
            "zero" => with(1, libc::O_RDWR, falloc(0x10)?)?,
            "falloc" => with(1, libc::O_RDWR, falloc(1)?)?,
            "grow" => with(1, libc::O_RDWR, falloc(0)?)?,
            "fdatasync" => with(1, libc::O_RDWR, vec![Op::Fdatasync { fd: TEMP }])?,
            "read" => with(1, libc::O_RDONLY, vec![Op::Read { fd: TEMP, len: 1 << 16 }])?,
            "trunc" => out.push(Op::Truncate { path: path(1)?, size: num(2)? }),
            "mkdir" => out.push(Op::Mkdir { path: path(1)?, mode: 0o755 }),
            "rmdir" => out.push(Op::Rmdir { path: path(1)? }),
            "unlink" => out.push(Op::Unlink { path: path(1)? }),
            "link" => out.push(Op::Link { old: path(1)?, new: path(2)? }),
            "symlink" => out.push(Op::Symlink { target: path(1)?, path: path(2)? }),
            "rename" => out.push(rename(0)?),
            "noreplace" => out.push(rename(1)?),
            "exchange" => out.push(rename(2)?),
            "whiteout" => out.push(rename(4)?),
            "chmod" => {
                let mode = u32::from_str_radix(arg(2)?, 8).map_err(|_| bad())?;
                out.push(Op::Chmod { path: path(1)?, mode });
            }
            "chown" => {
                let (uid, gid) = (Some(num(2)? as u32), Some(num(3)? as u32));
                out.push(Op::Chown { path: path(1)?, uid, gid, follow: true });
            }
            "setfacl" => {
                let (name, value) = ("system.posix_acl_access".into(), data(num(2)?));
                out.push(Op::Setxattr { path: path(1)?, name, value, flags: 0 });
            }
            "rmfacl" => {
                let name = "system.posix_acl_access".into();
                out.push(Op::Removexattr { path: path(1)?, name });
            }
            "setxattr" => {
                let value = data(num(3)?);
                out.push(Op::Setxattr { path: path(1)?, name: path(2)?, value, flags: 0 });
            }
            "rmxattr" => out.push(Op::Removexattr { path: path(1)?, name: path(2)? }),
            "utimens" => {
                let t = crate::op::When::At(num(2)? as i64);
                out.push(Op::Utimens { path: path(1)?, atime: t, mtime: t });
            }
            "fsync" => out.push(Op::FsyncPath { path: path(1)? }),
            "fsyncdir" => out.push(Op::FsyncDir { path: path(1)? }),
            "sync" => out.push(Op::Sync),
            "open" => out.push(Op::Open { fd: fd(1)?, path: path(2)?, flags: libc::O_RDWR, mode: 0 }),
            "tmpfile" => out.push(Op::Open {
                fd: fd(1)?,
                path: path(2)?,
                flags: libc::O_TMPFILE | libc::O_RDWR,
                mode: 0o600,
            }),
            "linkfd" => out.push(Op::LinkFd { fd: fd(1)?, new: path(2)? }),
            "pwrite" => {
                let op = Op::Pwrite { fd: fd(1)?, offset: num(2)?, data: data(num(3)?) };
                out.push(op);
            }
            "fsyncfd" => out.push(Op::Fsync { fd: fd(1)? }),
            "close" => out.push(Op::Close { fd: fd(1)? }),
            "stat" => out.push(Op::Lstat { path: path(1)? }),
            "ls" => out.push(Op::Readdir { path: path(1)? }),
            "tick" => out.push(Op::Tick),
            "ckpt" => out.push(Op::Checkpoint),
            "remount" => out.push(Op::Remount),
            _ => return Err(bad()),
        }
    }
    Ok(out.into_iter().map(Step::from).collect())
}

/// The mistakes of earlier systems, and the examples of the papers: (name, script).
pub const KNOWN: &[(&str, &str)] = &[
    (
        "scalefs-5.1 rename of two links onto one name",
        "mkdir /d; creat /d/a 100; creat /d/b 200; link /d/b /d/c; sync; rename /d/b /d/c; rename /d/a /d/c; fsyncdir /d",
    ),
    (
        "scalefs-5.2 operations merge in order",
        "creat /a 10; rename /a /b; creat /a 20; fsync /b; rename /b /c; fsync /a",
    ),
    (
        "scalefs-5.3 cross-directory rename then fsync of the source",
        "mkdir /d; mkdir /e; creat /d/f 5000; sync; rename /d/f /e/f; fsyncdir /d",
    ),
    (
        "scalefs-5.3 cross-directory rename then fsync of the target",
        "mkdir /d; mkdir /e; creat /d/f 5000; sync; rename /d/f /e/f; fsyncdir /e",
    ),
    (
        "scalefs-5.3 cross-directory rename of a directory",
        "mkdir /d; mkdir /e; mkdir /d/s; creat /d/s/f 100; sync; rename /d/s /e/s; fsyncdir /d; creat /e/s/g 9; fsync /e/s/g",
    ),
    (
        "scalefs-5.3 create and unlink absorbed while open",
        "mkdir /d; creat /d/t 10; open 1 /d/t; unlink /d/t; fsyncfd 1; fsyncdir /d; pwrite 1 0 5000; fsyncfd 1; close 1; fsyncdir /d",
    ),
    (
        "scalefs-5.3 no link to an uninitialised inode",
        "mkdir /d; creat /d/a 10; link /d/a /b; fsyncdir /; fsyncdir /d",
    ),
    (
        "scalefs-5.3 no orphan directory, no loop",
        "mkdir /a; mkdir /a/b; mkdir /c; sync; rename /a/b /c/b; rename /a /c/b/a; fsyncdir /c/b; creat /c/b/a/f 1; fsync /c/b/a/f",
    ),
    (
        "max figure 4: versions of one inode in several logs",
        "mkdir /A; mkdir /B; creat /A/a 4096; creat /A/b 4096; ckpt; write /A/b 0 4096; fsync /A/b; rename /A/b /B/b; fsync /B/b; \
         creat /A/c 100; fsync /A/c; unlink /A/a; fsyncdir /A; write /B/b 0 4096; fsync /B/b",
    ),
    (
        "max figure 5: reuse of obsolete node blocks",
        "mkdir /A; creat /A/a 4096; creat /A/b 4096; sync; ckpt; unlink /A/a; fsyncdir /A; write /A/b 0 4096; fsync /A/b; \
         write /A/b 0 4096; fsync /A/b; ckpt; write /A/b 0 4096; fsync /A/b; creat /A/c 4096; fsync /A/c; ckpt; unlink /A/c; fsyncdir /A",
    ),
    (
        "fsynced data outside the first log",
        "creat /a 9000; fsync /a; creat /b 9000; fsync /b; creat /c 9000; fsync /c; creat /d 9000; fsync /d; write /b 4096 4096; fsync /b",
    ),
    (
        "rename over an existing name",
        "creat /a 5000; creat /b 6000; sync; ckpt; creat /t 7000; fsync /t; rename /t /a; fsyncdir /; creat /t 100; rename /t /b; fsync /b",
    ),
    (
        "replace by rename without fsync",
        "creat /a 9000; sync; creat /t 5000; rename /t /a; sync; creat /t 8000; rename /t /a; fsyncdir /",
    ),
    (
        "a directory renamed over an empty and a full one",
        "mkdir /a; mkdir /b; mkdir /c; creat /c/f 10; sync; rename /a /b; fsyncdir /; rename /b /c; unlink /c/f; rename /b /c; fsyncdir /",
    ),
    (
        "absorption of link a, unlink a, link b, link a, unlink a",
        "creat /x 100; sync; link /x /a; unlink /a; link /x /b; link /x /a; unlink /a; fsync /b; unlink /x; fsyncdir /",
    ),
    (
        "orphans are reclaimed",
        "creat /o 9000; fsync /o; open 1 /o; unlink /o; fsyncdir /; pwrite 1 0 4096; fsyncfd 1; ckpt; close 1; tick; ckpt; creat /n 100; fsync /n; tick; ckpt",
    ),
    (
        "the second fsync writes what came during the first",
        "creat /a 4096; fsync /a; write /a 0 100; fsync /a; write /a 50 100; fsync /a; write /a 4000 200; fdatasync /a; append /a 10; fdatasync /a",
    ),
    (
        "a large closure",
        "mkdir /d; creat /d/a; creat /d/b; creat /d/c; creat /d/d; creat /d/e; link /d/a /d/f; link /d/b /d/g; rename /d/c /d/h; \
         rename /d/d /d/i; unlink /d/e; symlink target /d/s; mkdir /d/j; creat /d/j/k 100; fsync /d/j/k; fsyncdir /d",
    ),
    (
        "fsync of one name keeps all names",
        "creat /a 100; link /a /b; mkdir /d; link /a /d/c; fsync /b; unlink /a; fsync /b; unlink /b; fsync /d/c",
    ),
    (
        "fsync after a rename",
        "creat /a 100; fsync /a; rename /a /b; fsync /b; creat /a 200; fsync /a; rename /a /b; fsync /b",
    ),
    (
        "fsync of a new file keeps its new ancestors",
        "mkdir /a; mkdir /a/b; mkdir /a/b/c; creat /a/b/c/f 5000; fsync /a/b/c/f",
    ),
    (
        "unlink and create under the same name",
        "creat /a 5000; sync; unlink /a; creat /a 3000; fsync /a; unlink /a; mkdir /a; fsyncdir /; creat /a/f 9; fsync /a/f",
    ),
    (
        "rmdir and create under the same name",
        "mkdir /a; creat /a/f 10; fsync /a/f; unlink /a/f; rmdir /a; creat /a 20; fsync /a; unlink /a; mkdir /a; fsyncdir /a; ckpt",
    ),
    (
        "truncate and grow",
        "creat /a 9000; fsync /a; trunc /a 100; fsync /a; trunc /a 9000; fsync /a; write /a 8000 10; fsync /a; trunc /a 0; trunc /a 5000; fsync /a",
    ),
    (
        "tails in the inode block",
        "creat /a 3000; fsync /a; append /a 300; fsync /a; append /a 2000; fsync /a; trunc /a 3300; fsync /a; append /a 1; fsync /a",
    ),
    (
        "holes",
        "creat /a 16384; fsync /a; punch /a 4096 4096; fsync /a; zero /a 100 5000; fsync /a; falloc /a 20000 5000; grow /a 20000 4000; fsync /a; write /a 22000 10; fsync /a",
    ),
    (
        "exchange",
        "mkdir /d; creat /d/a 100; creat /b 5000; sync; exchange /d/a /b; fsync /b; exchange /d /b; fsyncdir /; fsyncdir /b",
    ),
    (
        "whiteouts",
        "mkdir /d; creat /d/a 100; creat /b 50; creat /x 10; sync; whiteout /d/a /c; fsync /c; whiteout /c /b; fsyncdir /; whiteout /d /e; fsyncdir /e; \
         unlink /d; whiteout /x /d; rename /c /x; fsync /d; whiteout /b /e/b; rename /e /g; sync",
    ),
    (
        "tmpfile",
        "mkdir /d; tmpfile 1 /d; pwrite 1 0 5000; fsyncfd 1; linkfd 1 /d/t; fsyncfd 1; close 1; tmpfile 1 /; pwrite 1 0 100; close 1; sync",
    ),
    (
        "attributes",
        "creat /a 10; chmod /a 600; fsync /a; setxattr /a user.x 100; chmod /a 4711; fdatasync /a; fsync /a; rmxattr /a user.x; utimens /a 1000000000; fsync /a; \
         setxattr /a user.big 3000; fsync /a; chmod / 700; fsyncdir /",
    ),
    (
        "a directory that is closed before something is put into it",
        "mkdir /d; sync; chmod /d 700; creat /d/secret 100; fsync /d/secret; chmod /d 755; unlink /d/secret; chmod /d 711; mkdir /e; fsyncdir /e",
    ),
    (
        "modes, owners and ACLs in the order of names",
        "creat /a 10; creat /b 10; mkdir /d; sync; chmod /a 600; rename /b /c; fsync /c; chown /a 5 7; link /c /e; sync; setfacl /d 44; \
         mkdir /f; fdatasync /a; setfacl /a 3000; creat /g 10; fsync /g; rmfacl /a; unlink /g; ckpt; chmod / 711; chmod /c 4711; mkdir /h; tick; fsyncdir /h",
    ),
    (
        "a chmod that may not be durable before a name",
        "creat /a 9000; sync; mkdir /d; chmod /a 600; write /a 0 4096; fdatasync /a; mkdir /e; chmod /a 640; ckpt; mkdir /f; chown /a 1 1; tick; ckpt; \
         creat /t 5000; chmod /t 755; rename /t /a; mkdir /g; chmod /a 400; sync",
    ),
    (
        "content behind a change of rights",
        "creat /a 20000; creat /s 100; chmod /s 4755; sync; chmod /a 600; write /a 0 20000; tick; write /a 4096 9000; fdatasync /a; chmod /a 644; \
         write /a 8192 100; write /s 0 100; ckpt; chmod /a 400; write /a 0 9000; sync; chown /a 7 7; write /a 100 200; fsync /a",
    ),
    (
        "rights of an inode that is made and changed at once",
        "mkdir /d; creat /a 10; chmod /a 600; fsyncdir /d; creat /b 10; chown /b 3 3; chmod /b 4700; unlink /a; creat /a 10; setfacl /a 44; rename /b /a; fsync /a; \
         tmpfile 1 /d; pwrite 1 0 100; linkfd 1 /d/t; chmod /d/t 644; fsyncfd 1; close 1; ckpt",
    ),
    (
        "symbolic links",
        "symlink over/there /s; fsyncdir /; rename /s /t; mkdir /d; rename /t /d/t; fsyncdir /d; unlink /d/t; sync",
    ),
    (
        "remount between",
        "creat /a 5000; mkdir /d; remount; append /a 100; rename /a /d/a; fsync /d/a; remount; unlink /d/a; rmdir /d; fsyncdir /; remount; creat /a 10; fsync /a",
    ),
    (
        "an epoch that ends as it began, and an fsync in the middle",
        "mkdir /a; mkdir /b; creat /f 10; sync; exchange /a /b; fsyncdir /; exchange /a /b; sync; link /f /g; fsync /f; unlink /g; sync",
    ),
    (
        "checkpoints between",
        "creat /a 5000; ckpt; write /a 0 100; ckpt; fsync /a; mkdir /d; ckpt; rename /a /d/a; ckpt; creat /d/b 10; fsync /d/b; ckpt; unlink /d/a; ckpt; ckpt; fsyncdir /d",
    ),
    (
        "background rounds between",
        "creat /a 9000; tick; write /a 0 100; tick; fsync /a; mkdir /d; tick; rename /a /d/a; tick; creat /d/b 10; tick; fsync /d/b; unlink /d/a; tick; tick; fsyncdir /d",
    ),
    (
        "overwriting between checkpoints",
        "creat /a 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; ckpt; write /a 0 60000; fsync /a; ckpt; write /a 0 60000; fsync /a; \
         write /a 0 60000; ckpt; tick; write /a 0 60000; fsync /a; ckpt; creat /b 60000; fsync /b; unlink /a; ckpt; creat /c 60000; fsync /c; ckpt; write /c 0 60000; fsync /c",
    ),
];

/// [`KNOWN`] as scenarios.
pub fn known() -> Result<Vec<Scenario>, String> {
    let made = KNOWN
        .iter()
        .map(|(name, text)| Ok(Scenario { name: (*name).into(), steps: script(text)?, setup: 0 }));
    made.collect()
}

/// Workloads for a device of 384 blocks, where the log comes back to segments that it has left
/// ("wraps") and the cleaner moves what lives ("cleans"). Crashes begin when it is about to.
pub fn small() -> Result<Vec<Scenario>, String> {
    let write = |file: &str, n: usize| format!("write /{file} 0 60000; fsync /{file}; ").repeat(n);
    // Two blocks that stay in each segment of the log, between others that do not.
    let spread = |files: std::ops::Range<usize>| -> String {
        files.map(|i| format!("creat /k{i} 8000; fsync /k{i}; write /a 0 40000; fsync /a; ")).collect()
    };
    let kept =
        format!("mkdir /d; creat /d/x 100; symlink there /d/s; creat /a 60000; sync; {}", spread(0..16));
    // Directories whose buckets lie in several segments, and all change before a round that cleans.
    // So little is left that slack does not do, which data goes to before anything is moved.
    let dirs = |op: &str| -> String { (0..8).map(|i| op.replace('N', &i.to_string())).collect() };
    let named = format!(
        "creat /a 60000; creat /f 440000; sync; {}",
        dirs("mkdir /dN; creat /dN/x 8000; fsync /dN/x; ckpt; write /a 0 40000; fsync /a; ")
    );
    let names: String = (0..4)
        .map(|i| format!("{}write /a 0 40000; fsync /a; tick; ", dirs(&format!("link /dN/x /dN/n{i}; "))))
        .collect();
    let all: [(&str, String, String); 7] = [
        (
            "wraps: fsyncs of one file",
            format!("creat /k 100; fsync /k; creat /a 60000; fsync /a; {}", write("a", 17)),
            write("a", 5),
        ),
        (
            "wraps: a truncation that is not durable",
            format!("creat /a 60000; sync; ckpt; trunc /a 0; creat /b 60000; fsync /b; {}", write("b", 15)),
            write("b", 6),
        ),
        (
            "wraps: names between",
            format!("mkdir /d; creat /d/x 5000; sync; creat /a 60000; fsync /a; {}", write("a", 17)),
            format!(
                "rename /d/x /y; {0}link /y /d/z; ckpt; {0}unlink /y; {0}rename /d/z /a; fsync /a; creat /n 60000; fsync /n",
                write("a", 1)
            ),
        ),
        (
            "cleans: by rounds of the background",
            kept.clone(),
            "write /a 0 40000; fsync /a; tick; write /a 0 40000; fsync /a; tick; write /k3 0 8000; fsync /k3; tick; \
             write /a 0 40000; fsync /a; tick; write /k4 0 8000; fsync /k4; tick; write /a 0 40000; fsync /a; tick; \
             write /a 0 40000; fsync /a; tick"
                .into(),
        ),
        ("cleans: directories whose names change before the checkpoint", named, format!("{names}sync; ckpt")),
        // Nothing waits for a fold, which would free space first.
        (
            "cleans: for one who finds no room",
            format!("{kept}{}ckpt; ", spread(16..24)),
            format!("{}ckpt; {}", write("a", 8), write("a", 2)),
        ),
        (
            "cleans: what is changed meanwhile",
            format!("creat /f 200000; {kept}"),
            "write /k1 0 100; unlink /k2; rename /k4 /k5; tick; write /a 0 40000; fsync /a; trunc /k6 4096; append /k7 100; \
             tick; punch /k8 0 4096; rename /d/x /x; write /a 0 40000; fsync /a; tick; fsync /k7; ckpt; tick; sync"
                .into(),
        ),
    ];
    let made = all.into_iter().map(|(name, before, then)| {
        let setup = script(&before)?.len();
        Ok(Scenario { name: name.into(), steps: script(&format!("{before}{then}"))?, setup })
    });
    made.collect()
}
