//! `guest`: what the command inside asks of the host.

use super::{Args, Command};
use crate::compare::Medium;
use crate::error::{Failure, Res};
use crate::guest::{Asked, GuestArgs};
use clap::Parser;
use std::path::PathBuf;

/// Returns the command, parsed, where a guest can run it.
fn parse(command: &[String]) -> Res<Command> {
    let words = std::iter::once("lanefs-bench").chain(command.iter().map(String::as_str));
    let parsed = Args::try_parse_from(words).map_err(|e| Failure::refused(e.to_string().trim_end()))?;
    match parsed.command {
        Command::Guest(_) | Command::Inside => {
            Err(Failure::refused("a guest in a guest: name the command of the inner one alone"))
        }
        Command::Report(_) => Err(Failure::refused("a report needs no guest")),
        command => Ok(command),
    }
}

/// Returns what a command asks for that is the host's.
fn asked(command: &Command) -> Asked {
    let (json, html): (&Option<PathBuf>, &Option<PathBuf>) = match command {
        Command::Run(args) => (&args.json, &None),
        Command::Compare(args) => (&args.json, &None),
        Command::Space(args) => (&args.json, &None),
        Command::Embed(args) => (&args.json, &None),
        Command::Ablate(args) => (&args.json, &None),
        Command::Cost(args) => (&args.json, &None),
        Command::Memory(args) => (&args.json, &None),
        Command::Paper(args) => (&args.json, &args.html),
        _ => (&None, &None),
    };
    let (images, medium) = match command {
        Command::Compare(args) => (Some(&args.images), Some(args.medium)),
        Command::Space(args) => (Some(&args.images), Some(args.medium)),
        Command::Embed(args) => (Some(&args.images), Some(args.medium)),
        Command::Paper(args) => (Some(&args.images), args.medium),
        _ => (None, None),
    };
    Asked {
        results: [json, html].into_iter().flatten().cloned().collect(),
        images: images.cloned().unwrap_or_else(|| "/var/tmp".into()),
        on_disk: medium == Some(Medium::Disk),
    }
}

/// Runs a command in a guest and returns its exit status.
pub fn run(args: &GuestArgs, front: &[&str]) -> Res<i32> {
    crate::guest::run(args, &asked(&parse(&args.command)?), front)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|w| w.to_string()).collect()
    }

    #[test]
    fn what_a_guest_cannot_run_is_refused_before_one_starts() {
        let refused = |w: &[&str]| parse(&words(w)).map(|_| ()).unwrap_err();
        assert!(refused(&["guest", "--", "list"]).message.contains("inner"));
        let unknown = refused(&["compare", "--no-such"]);
        assert!(unknown.message.contains("--no-such") && unknown.code == 1, "{unknown:?}");
    }

    #[test]
    fn a_command_tells_what_it_asks_of_the_host() {
        let of = |w: &[&str]| asked(&parse(&words(w)).unwrap());
        let paper = of(&["paper", "max-6", "--json", "j", "--html", "h", "--medium", "disk"]);
        assert_eq!(paper.results, ["j", "h"].map(PathBuf::from));
        assert!(paper.on_disk && paper.images == *"/var/tmp");
        let space = of(&["space", "--images", "/mnt", "--json", "s"]);
        assert!(!space.on_disk && space.images == *"/mnt");
        assert_eq!(space.results, [PathBuf::from("s")]);
    }
}
