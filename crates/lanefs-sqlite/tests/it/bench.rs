//! `lanefs bench embed`, of the volume alone: it needs no root then.

use crate::shell::extension;
use lanefs_bench::compare::Medium;
use lanefs_bench::embed::{EmbedArgs, Engine, run};

#[test]
fn transactions_on_a_volume_are_measured_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("embed.json");
    let args = EmbedArgs {
        medium: Medium::Disk,
        peers: vec!["lanefs".into()],
        engines: vec![Engine::Sqlite],
        transactions: 2000,
        files: 0,
        written: "4G".into(),
        rounds: 1,
        size: "64M".into(),
        images: dir.path().into(),
        lanefs: None,
        extension: Some(extension().with_extension("so")),
        python: "python3".into(),
        plugin: None,
        json: Some(json.clone()),
    };
    assert_eq!(run(&args).map_err(|e| e.message).unwrap(), 0);
    let text = std::fs::read_to_string(json).unwrap();
    for load in ["sqlite-wal", "sqlite-rollback", "sqlite-wal-normal"] {
        assert!(text.contains(&format!("\"load\": \"{load}\"")), "{text}");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["embed.json"], "what was made is removed");
}
