//! Trees of files to work on: the same for the same seed.

use lanefs_sync::random::Rng;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// Fills `dir` with about `files` files of text-like content, most of them small, in folders of
/// some fifty, with a few symbolic links, hard links, executable files, empty files, sparse files
/// and long names.
pub fn make(dir: &Path, files: usize, seed: u64) -> std::io::Result<()> {
    let mut random = Rng::at(seed);
    let mut content = Vec::new();
    for i in 0..files {
        let folder = dir.join(format!("part{}/group{}", i / 2500, i / 50));
        if i % 50 == 0 {
            fs::create_dir_all(&folder)?;
        }
        let path = folder.join(format!("file-{i}.txt"));
        let size = match random.below(100) {
            0..=4 => 0,
            5..=79 => random.below(4000),
            80..=98 => random.below(40_000),
            _ => random.below(400_000),
        };
        text(&mut content, size as usize, &mut random);
        fs::write(&path, &content)?;
        match random.below(40) {
            0 => symlink(format!("file-{i}.txt"), folder.join(format!("link-{i}")))?,
            1 => fs::hard_link(&path, folder.join(format!("hard-{i}")))?,
            2 => fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?,
            3 => fs::write(folder.join(format!("{}-{i}", "n".repeat(200))), b"a long name")?,
            4 => {
                let sparse = fs::File::create(folder.join(format!("sparse-{i}")))?;
                sparse.set_len(random.below(1 << 20))?;
                std::os::unix::fs::FileExt::write_all_at(&sparse, b"island", random.below(1 << 19))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Lines of hexadecimal words.
fn text(into: &mut Vec<u8>, size: usize, random: &mut Rng) {
    into.clear();
    while into.len() < size {
        let word = random.bits();
        into.extend_from_slice(format!("{word:x}").as_bytes());
        into.push(if word.is_multiple_of(7) { b'\n' } else { b' ' });
    }
    into.truncate(size);
}
