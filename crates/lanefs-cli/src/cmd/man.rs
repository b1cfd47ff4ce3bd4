//! `lanefs man`
//!
//! The arguments on a page come from the definitions; exit codes and examples are here.
//! Commands for who looks after a system are in section 8, the others in section 1. Two pages are
//! written by hand: that of volumes and their options, and that of mount(8)'s helper.

use crate::failure::{About, Outcome};
use clap::Command;
use clap_mangen::Man;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Write the manual pages, of sections 1, 5 and 8, into a directory
///
/// With DIR/man1, DIR/man5 and DIR/man8 as man(1) looks for them: `man -M DIR lanefs-mount`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where to write them
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Pages that no definition makes: name and content.
const BY_HAND: [(&str, &str); 2] = [
    ("lanefs.5", include_str!("../../man/lanefs.5")),
    ("mount.fuse.lanefs.8", include_str!("../../man/mount.fuse.lanefs.8")),
];

/// The sections of a page behind its arguments.
struct More {
    command: &'static str,
    section: &'static str,
    /// Exit codes, and the meaning of each.
    codes: &'static [(&'static str, &'static str)],
    examples: &'static [&'static str],
}

const DONE: &[(&str, &str)] = &[
    ("0", "Done."),
    ("1", "It failed; one line of standard error says why, and what to do."),
    ("2", "The arguments make no sense."),
];
const CHECKED: &[(&str, &str)] = &[
    ("0", "Nothing is wrong."),
    ("1", "Errors were found and all of them repaired."),
    ("2", "The arguments make no sense."),
    ("4", "Errors are left."),
    ("8", "The check could not be run."),
];
const SCRUBBED: &[(&str, &str)] = &[
    ("0", "Nothing is damaged."),
    ("2", "The arguments make no sense."),
    ("4", "Something is damaged."),
    ("8", "The scrub could not be run."),
];

const fn more(command: &'static str, section: &'static str, examples: &'static [&'static str]) -> More {
    More { command, section, codes: DONE, examples }
}

const MORE: &[More] = &[
    more("mkfs", "8", &["lanefs mkfs --size 8G --label home /images/home.lane", "lanefs mkfs /dev/sdx1"]),
    more(
        "mount",
        "8",
        &[
            "lanefs mount /images/home.lane /home",
            "lanefs mount --create --size 4G -o cache_size=1G,noatime disk.lane mnt",
        ],
    ),
    more("umount", "8", &["lanefs umount /home"]),
    more("virtiofs", "8", &["lanefs virtiofs --create --size 8G --socket /run/vm.sock disk.lane"]),
    More {
        codes: CHECKED,
        ..more("fsck", "8", &["lanefs fsck disk.lane", "lanefs fsck --repair disk.lane"])
    },
    More {
        codes: SCRUBBED,
        ..more("scrub", "8", &["lanefs scrub --rate 50M /home", "lanefs scrub --json disk.lane"])
    },
    more("grow", "8", &["lanefs grow /home --size 16G", "losetup -c /dev/loop0; lanefs grow /dev/loop0"]),
    more("shrink", "8", &["lanefs shrink /home --size 8G", "lanefs shrink a.lane,b.lane --size 1G"]),
    more(
        "device",
        "8",
        &[
            "lanefs device add /home /dev/sdx1",
            "lanefs device remove a.lane,b.lane b.lane",
            "lanefs device replace /home /dev/sdx1 /dev/sdy1",
        ],
    ),
    more("label", "8", &["lanefs label /home", "lanefs label disk.lane backup"]),
    more("install", "8", &["lanefs install", "lanefs install --prefix ~/.local"]),
    more("install-helper", "8", &["lanefs install-helper"]),
    more("dump", "8", &[]),
    more("info", "1", &["lanefs info disk.lane", "eval \"$(lanefs info --export /home)\"; echo $UUID"]),
    more("df", "1", &["lanefs df /home disk.lane"]),
    more(
        "stat",
        "1",
        &["lanefs stat /home", "lanefs stat --json --latency 10 /home", "lanefs stat --prometheus /home"],
    ),
    more("top", "1", &["lanefs top /home", "lanefs top --count 3 /home"]),
    more("ls", "1", &["lanefs ls -l disk.lane:/mail"]),
    more("cat", "1", &["lanefs cat disk.lane:/etc/motd"]),
    more("cp", "1", &["lanefs cp -rp src disk.lane:/dst", "lanefs cp disk.lane:/etc/motd ."]),
    more("mkdir", "1", &["lanefs mkdir disk.lane:/new"]),
    more("rm", "1", &["lanefs rm -r disk.lane:/old", "lanefs rm -r --all disk.lane:/"]),
    more("tree", "1", &["lanefs tree disk.lane:/mail"]),
];

/// Writes them, of the whole command.
pub fn run(args: &Args, mut cli: Command) -> Outcome {
    cli.build();
    page(&args.dir, &Man::new(cli.clone()).manual("LaneFS"), "lanefs", "1", None)?;
    for command in cli.get_subcommands().filter(|c| !c.is_hide_set()) {
        let more = MORE.iter().find(|m| m.command == command.get_name());
        let section = more.map_or("1", |m| m.section);
        let name = format!("lanefs-{}", command.get_name());
        page(&args.dir, &of(command, &name, section), &name, section, more)?;
        for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
            let name = format!("{name}-{}", below.get_name());
            page(&args.dir, &of(below, &name, section), &name, section, None)?;
        }
    }
    for (name, text) in BY_HAND {
        let section = name.rsplit('.').next().unwrap_or("1");
        put(&args.dir, name, section, text.as_bytes())?;
    }
    Ok(0)
}

/// Makes the page of a command.
fn of(command: &clap::Command, name: &str, section: &str) -> Man {
    let usage = name.replacen("lanefs-", "lanefs ", 1);
    let command = command.clone().display_name(name.to_string()).bin_name(usage);
    Man::new(command).title(name).section(section).manual("LaneFS")
}

/// Renders a page and writes it.
fn page(dir: &Path, man: &Man, name: &str, section: &str, more: Option<&More>) -> Result<(), crate::Failure> {
    let mut out = Vec::new();
    // Into memory: nothing can fail.
    let written = man.render(&mut out).and_then(|()| more.map_or(Ok(()), |m| m.write(&mut out)));
    written.about(name)?;
    put(dir, &format!("{name}.{section}"), section, &out)
}

/// Writes a page into the directory of its section.
fn put(dir: &Path, name: &str, section: &str, text: &[u8]) -> Result<(), crate::Failure> {
    debug_assert!(matches!(section, "1" | "5" | "8") && name.ends_with(section), "{name} in {section}");
    let dir = dir.join(format!("man{section}"));
    std::fs::create_dir_all(&dir).about(dir.display())?;
    let path = dir.join(name);
    std::fs::write(&path, text).about(path.display())
}

/// Escapes text so that the formatter takes it as it is.
fn plain(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

impl More {
    /// Writes the sections.
    fn write(&self, out: &mut Vec<u8>) -> std::io::Result<()> {
        debug_assert!(self.codes.is_sorted(), "exit codes are listed in their order");
        writeln!(out, ".SH \"EXIT STATUS\"")?;
        for (code, what) in self.codes {
            writeln!(out, ".TP\n.B {code}\n{what}")?;
        }
        if !self.examples.is_empty() {
            writeln!(out, ".SH EXAMPLES\n.nf")?;
            for example in self.examples {
                writeln!(out, "{}", plain(example))?;
            }
            writeln!(out, ".fi")?;
        }
        writeln!(out, ".SH \"SEE ALSO\"\n.BR lanefs (1),\n.BR lanefs (5)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pages_add_is_of_commands_there_are() {
        let cli = <crate::cli::Cli as clap::CommandFactory>::command();
        for m in MORE {
            assert!(cli.find_subcommand(m.command).is_some(), "{}", m.command);
        }
    }
}
