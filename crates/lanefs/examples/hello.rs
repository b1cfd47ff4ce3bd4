//! The first steps: a volume in memory, a few files, a look at them.
//!
//!     cargo run -p lanefs --example hello

use lanefs::{OpenOptions, Result, Volume};

/// Says what it finds, line by line.
pub fn run() -> Result<Vec<String>> {
    let volume = Volume::in_memory(64 << 20)?;
    let fs = volume.fs();
    fs.mkdir_all("/greetings/polite", 0o755)?;
    let file = fs.open("/greetings/draft", OpenOptions::new().write(true).create_new(true))?;
    file.write_all_at(b"hello, world", 0)?;
    file.sync_all()?; // content, name and directories survive a crash from here on
    fs.rename("/greetings/draft", "/greetings/polite/hello")?;
    fs.symlink("polite/hello", "/greetings/short")?;

    let mut said = vec![String::from_utf8_lossy(&fs.read("/greetings/short")?).into_owned()];
    fs.read_dir_from("/greetings", 0, &mut |entry| {
        said.push(format!("{:?} {}", entry.kind, String::from_utf8_lossy(entry.name)));
        true
    })?;
    let stat = fs.stat("/greetings/polite/hello")?;
    said.push(format!("{} bytes, {} name", stat.size, stat.nlink));
    said[1..].sort();
    Ok(said)
}

fn main() -> Result<()> {
    run()?.iter().for_each(|line| println!("{line}"));
    Ok(())
}
