//! `cargo xtask python-wheel --out DIR`: the wheel of the module for Python. `cargo xtask
//! python-test`: its tests, with the wheel installed as a user does.
//!
//! What is needed of Python's registry is installed into virtual environments below the target
//! folder, which later runs use again.

use crate::programs::volume::target;
use crate::run::{need, root, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the package, with `pyproject.toml`.
const PACKAGE: &str = "crates/lanefs-python";

/// Builds wheels.
const BUILDER: &str = "maturin==1.16.0";

const USAGE: &str = "python-wheel --out DIR [--debug]";

/// Builds the wheel, for release unless the arguments have `--debug`.
pub fn wheel(args: &[&str]) -> Result<(), String> {
    let (out, debug) = match args {
        ["--out", out] => (out, false),
        ["--out", out, "--debug"] => (out, true),
        _ => return Err(format!("usage: {USAGE}")),
    };
    let out = std::path::absolute(out).map_err(|e| format!("{out}: {e}"))?;
    build(&out, debug)
}

/// Runs the tests; arguments are those of pytest.
pub fn test(args: &[&str]) -> Result<(), String> {
    let place = target().join("python");
    let (wheels, temporary) = (place.join("wheels"), place.join("tmp"));
    // Older ones are not to be tested.
    let _ = std::fs::remove_dir_all(&wheels);
    build(&wheels, true)?;
    let list = format!("{PACKAGE}/tests/requirements.txt");
    let wanted = std::fs::read_to_string(root().join(&list)).map_err(|e| format!("{list}: {e}"))?;
    let python = environment(&place.join("test"), &["-r", &list], &wanted)?;
    let wheel = std::fs::read_dir(&wheels).ok().and_then(|mut all| all.next()?.ok());
    let wheel = wheel.ok_or_else(|| format!("{}: no wheel was built", wheels.display()))?.path();
    run(pip(&python).args(["--no-deps", "--force-reinstall"]).arg(wheel))?;
    let mut pytest = Command::new(&python);
    pytest.args(["-m", "pytest", "-c"]).arg(root().join(PACKAGE).join("pyproject.toml"));
    pytest.arg("--basetemp").arg(&temporary).args(args).env("PYTHONDONTWRITEBYTECODE", "1");
    // Else it would look everywhere here, also among what other commands have copied.
    let names_a_file = |a: &&str| root().join(a.split("::").next().unwrap_or(a)).exists();
    if !args.iter().any(names_a_file) {
        pytest.arg(format!("{PACKAGE}/tests"));
    }
    let tested = run(&mut pytest);
    let _ = std::fs::remove_dir_all(temporary);
    tested
}

/// Builds the wheel into a folder.
fn build(out: &Path, debug: bool) -> Result<(), String> {
    let python = environment(&target().join("python/build"), &[BUILDER], BUILDER)?;
    let mut maturin = Command::new(&python);
    maturin.args(["-m", "maturin", "build", "--quiet", "--manifest-path"]);
    maturin.arg(format!("{PACKAGE}/Cargo.toml")).arg("--interpreter").arg(&python).arg("--out").arg(out);
    maturin.args(["--profile", if debug { "dev" } else { "release" }]);
    run(&mut maturin)
}

/// Returns the interpreter of a virtual environment with packages, which is made unless it has what
/// is `wanted`.
fn environment(dir: &Path, packages: &[&str], wanted: &str) -> Result<PathBuf, String> {
    let (python, stamp) = (dir.join("bin/python"), dir.join("lanefs-packages"));
    let usable = || Command::new(&python).arg("--version").output().is_ok_and(|o| o.status.success());
    if std::fs::read_to_string(&stamp).is_ok_and(|has| has == wanted) && usable() {
        return Ok(python);
    }
    let host = interpreter()?;
    run(Command::new(host).args(["-m", "venv", "--clear"]).arg(dir))?;
    run(pip(&python).args(packages))?;
    std::fs::write(&stamp, wanted).map_err(|e| format!("{}: {e}", stamp.display()))?;
    Ok(python)
}

/// Returns the command that installs packages.
fn pip(python: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet"]);
    pip
}

/// Returns a Python of the system that the module supports and that makes virtual environments.
fn interpreter() -> Result<&'static str, String> {
    const NEWEST_FIRST: [&str; 6] =
        ["python3", "python3.15", "python3.14", "python3.13", "python3.12", "python3.11"];
    need(&[("python3", "python3")])?;
    let answers = |python: &str, code: &str| {
        Command::new(python).args(["-c", code]).output().is_ok_and(|o| o.status.success())
    };
    let is_new = |python: &&str| answers(python, "import sys; sys.exit(sys.version_info < (3, 11))");
    let python = NEWEST_FIRST.into_iter().find(is_new).ok_or("Python 3.11 or later is needed")?;
    if !answers(python, "import ensurepip, venv") {
        // What Debian leaves out of its package of Python.
        need(&[("/usr/share/doc/python3-venv/copyright", "python3-venv")])?;
    }
    Ok(python)
}
