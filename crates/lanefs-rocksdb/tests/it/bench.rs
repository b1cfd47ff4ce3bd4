//! `lanefs bench embed`, of the volume alone: it needs no root then.

use crate::built::library;
use lanefs_bench::compare::Medium;
use lanefs_bench::embed::{EmbedArgs, Engine, run};

#[test]
fn loads_on_a_volume_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("embed.json");
    let args = EmbedArgs {
        medium: Medium::Disk,
        peers: vec!["lanefs".into()],
        engines: vec![Engine::Rocksdb],
        transactions: 100,
        files: 0,
        written: "16M".into(),
        rounds: 1,
        size: "768M".into(),
        images: dir.path().into(),
        lanefs: None,
        extension: None,
        python: "python3".into(),
        plugin: Some(library()),
        json: Some(json.clone()),
    };
    assert_eq!(run(&args).map_err(|e| e.message).unwrap(), 0);
    let text = std::fs::read_to_string(json).unwrap();
    for load in ["overwrite", "readrandom", "readwhilewriting", "fillsync"] {
        for jobs in ["1", "2"] {
            assert!(text.contains(&format!("\"load\": \"rocksdb-{load}-{jobs}\"")), "{text}");
        }
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["embed.json"], "what was made is removed");
}
