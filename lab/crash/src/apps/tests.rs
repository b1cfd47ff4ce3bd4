//! The judges must find what is lost: directories that a worker left are damaged by hand.

use super::worker::{Judge, Promised, Scratch, work};
use super::*;
use std::path::Path;

/// Runs an application in a plain directory and hands it, what was promised, and its judge to
/// `then`.
fn worked(name: &str, then: impl FnOnce(&Path, Promised, &mut Judge)) {
    let app = APPS.iter().find(|a| a.name == name).unwrap();
    if let Some(missing) = app.missing() {
        assert!(std::env::var_os("CI").is_none(), "{name}: {missing} is not installed");
        eprintln!("skipped: {missing} is missing");
        return;
    }
    let scratch = Scratch::new("test").unwrap();
    let dir = scratch.dir(name).unwrap();
    let mut promised = Promised::default();
    let mut note = |line: &str| promised.hear(line).unwrap();
    work(name, &dir, &scratch.dir("for").unwrap(), (6, 1), &mut note).unwrap();
    assert_eq!(promised, Promised { ready: true, acknowledged: 6, begun: 6 });
    let mut judge = Judge::start(name, &scratch.dir("judge").unwrap()).unwrap();
    assert_eq!(judge.ask(&dir, &promised).unwrap(), Ok(6), "{name}");
    then(&dir, promised, &mut judge);
}

#[test]
fn what_is_whole_passes_and_what_was_lost_is_told() {
    for app in APPS {
        worked(app.name, |dir, promised, judge| {
            if app.name != "replace" {
                let more = Promised { acknowledged: 9, begun: 9, ..promised };
                let said = judge.ask(dir, &more).unwrap().unwrap_err();
                assert!(said.contains("9 was acknowledged"), "{}: {said}", app.name);
            }
            let fewer = Promised { acknowledged: 3, begun: 5, ..promised };
            assert!(judge.ask(dir, &fewer).unwrap().unwrap_err().contains("only 5"), "{}", app.name);
        });
    }
}

#[test]
fn a_missing_object_a_lost_journal_and_an_empty_file_are_told() {
    worked("git", |dir, promised, judge| {
        let objects = std::fs::read_dir(dir.join(".git/objects")).unwrap().map(|e| e.unwrap().path());
        let some = objects.filter(|p| p.file_name().unwrap().len() == 2).max().unwrap();
        std::fs::remove_dir_all(some).unwrap();
        judge.ask(dir, &promised).unwrap().unwrap_err();
    });
    worked("sqlite-wal", |dir, promised, judge| {
        let db = dir.join("test.db");
        let mut bytes = std::fs::read(&db).unwrap();
        let half = bytes.len() / 2;
        bytes[half..].fill(0);
        std::fs::write(&db, bytes).unwrap();
        judge.ask(dir, &promised).unwrap().unwrap_err();
    });
    worked("maildir", |dir, promised, judge| {
        let mails = std::fs::read_dir(dir.join("mail/new")).unwrap();
        let mail = mails.map(|e| e.unwrap().path()).max().unwrap();
        std::fs::write(mail, b"").unwrap();
        assert!(judge.ask(dir, &promised).unwrap().unwrap_err().contains("is no mail"));
    });
    worked("editor", |dir, promised, judge| {
        std::fs::write(dir.join("file"), b"").unwrap();
        assert_eq!(judge.ask(dir, &promised).unwrap(), Err("the file is damaged: 0 bytes".into()));
    });
    worked("dpkg", |dir, promised, judge| {
        std::fs::write(dir.join("opt/pack/d0/f0"), b"").unwrap();
        assert!(judge.ask(dir, &promised).unwrap().unwrap_err().contains("whole"));
    });
}
