//! The first steps: a volume in memory, a few files, a look at them.
//!
//!     cargo run -p lanefs --example hello

use lanefs::{OpenOptions, Result, Volume};

/// Says what it finds, line by line.
pub fn run() -> Result<Vec<String>> {
    let volume = Volume::in_memory(64 << 20)?;
    let fs = volume.fs();
    fs.create_dir_all("/greetings/polite")?;
    let file = fs.open("/greetings/draft", OpenOptions::new().write(true).create_new(true))?;
    file.write_all_at(b"hello, world", 0)?;
    file.sync_all()?; // content, name and directories survive a crash from here on
    fs.rename("/greetings/draft", "/greetings/polite/hello")?;
    fs.symlink("polite/hello", "/greetings/short")?;

    let mut said = vec![fs.read_to_string("/greetings/short")?];
    for entry in fs.read_dir("/greetings")? {
        let entry = entry?;
        said.push(format!("{:?} {}", entry.file_type(), entry.file_name().display()));
    }
    let metadata = fs.metadata("/greetings/polite/hello")?;
    said.push(format!("{} bytes, {} name", metadata.len(), metadata.stat().nlink));
    said[1..].sort();
    Ok(said)
}

fn main() -> Result<()> {
    run()?.iter().for_each(|line| println!("{line}"));
    Ok(())
}
