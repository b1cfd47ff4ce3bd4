//! The command line, from which parser, help, completions and man pages all come.

use crate::cmd;
use crate::failure::Outcome;
use crate::names;
use clap::{CommandFactory, Parser, Subcommand};

/// LaneFS: a multicore log-structured file system in user space
#[derive(Parser, Debug)]
#[command(name = "lanefs", version, propagate_version = true, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Mkfs(cmd::mkfs::Args),
    Mount(cmd::mount::Args),
    Umount(cmd::umount::Args),
    Virtiofs(cmd::virtiofs::Args),
    Fsck(cmd::fsck::Args),
    Scrub(cmd::scrub::Args),
    Grow(cmd::grow::Args),
    Shrink(cmd::shrink::Args),
    Device(cmd::device::Args),
    Label(cmd::label::Args),
    Info(cmd::info::Args),
    Dump(cmd::dump::Args),
    Ls(cmd::ls::Args),
    Cat(cmd::cat::Args),
    Cp(cmd::cp::Args),
    Mkdir(cmd::mkdir::Args),
    Rm(cmd::rm::Args),
    Tree(cmd::tree::Args),
    Df(cmd::df::Args),
    Stat(cmd::stat::Args),
    Top(cmd::top::Args),
    Run(cmd::run::Args),
    Bench(cmd::bench::Args),
    Completions(cmd::completions::Args),
    Man(cmd::man::Args),
    Install(cmd::install::Args),
    InstallHelper(cmd::install_helper::Args),
}

impl Cli {
    /// Runs the command and returns its exit code.
    pub fn run(self) -> Outcome {
        // Those that serve, or run for long, have a log of their own.
        if !matches!(self.command, Command::Mount(_) | Command::Virtiofs(_) | Command::Bench(_)) {
            crate::log::tell();
        }
        let mut command = self.command;
        match &mut command {
            Command::Mount(cmd::mount::Args { images, .. })
            | Command::Virtiofs(cmd::virtiofs::Args { images, .. })
            | Command::Fsck(cmd::fsck::Args { images, .. })
            | Command::Info(cmd::info::Args { images, .. })
            | Command::Scrub(cmd::scrub::Args { volume: images, .. })
            | Command::Stat(cmd::stat::Args { volume: images, .. })
            | Command::Dump(cmd::dump::Args { images, .. }) => *images = names::all(images),
            _ => {}
        }
        match command {
            Command::Mkfs(a) => cmd::mkfs::run(&a),
            Command::Mount(a) => cmd::mount::run(&a),
            Command::Umount(a) => cmd::umount::run(&a),
            Command::Virtiofs(a) => cmd::virtiofs::run(&a),
            Command::Fsck(a) => cmd::fsck::run(&a),
            Command::Scrub(a) => cmd::scrub::run(&a),
            Command::Grow(a) => cmd::grow::run(&a),
            Command::Shrink(a) => cmd::shrink::run(&a),
            Command::Device(a) => cmd::device::run(&a),
            Command::Label(a) => cmd::label::run(&a),
            Command::Info(a) => cmd::info::run(&a),
            Command::Dump(a) => cmd::dump::run(&a),
            Command::Ls(a) => cmd::ls::run(&a),
            Command::Cat(a) => cmd::cat::run(&a),
            Command::Cp(a) => cmd::cp::run(&a),
            Command::Mkdir(a) => cmd::mkdir::run(&a),
            Command::Rm(a) => cmd::rm::run(&a),
            Command::Tree(a) => cmd::tree::run(&a),
            Command::Df(a) => cmd::df::run(&a),
            Command::Stat(a) => cmd::stat::run(&a),
            Command::Top(a) => cmd::top::run(&a),
            Command::Run(a) => cmd::run::run(&a),
            Command::Bench(a) => cmd::bench::run(a),
            Command::Completions(a) => cmd::completions::run(&a, Cli::command()),
            Command::Man(a) => cmd::man::run(&a, Cli::command()),
            Command::Install(a) => cmd::install::run(&a, Cli::command()),
            Command::InstallHelper(a) => cmd::install_helper::run(&a),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }
}
