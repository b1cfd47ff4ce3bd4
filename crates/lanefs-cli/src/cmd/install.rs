//! `lanefs install`

use super::man;
use crate::failure::{About, Outcome};
use clap::Command;
use clap_complete::Shell;
use std::path::{Path, PathBuf};

/// Write manual pages and completions where man(1) and shells look for them
///
/// The program itself stays where it is, and mount(8)'s helper is another command's business:
/// lanefs install-helper.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Below which directory, such as ~/.local
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    pub prefix: PathBuf,
}

/// The files that shells look for.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/lanefs"),
    (Shell::Zsh, "share/zsh/site-functions/_lanefs"),
    (Shell::Fish, "share/fish/vendor_completions.d/lanefs.fish"),
];

/// Writes all of them.
pub fn run(args: &Args, mut whole: Command) -> Outcome {
    man::run(&man::Args { dir: args.prefix.join("share/man") }, whole.clone())?;
    for (shell, place) in COMPLETIONS {
        let path = args.prefix.join(place);
        let dir = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(dir).about(dir.display())?;
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut whole, "lanefs", &mut script);
        std::fs::write(&path, script).about(path.display())?;
    }
    Ok(0)
}
