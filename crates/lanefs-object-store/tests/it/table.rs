//! A table in objects, as databases on object stores keep theirs: immutable runs, and a manifest
//! that is replaced under the condition that nobody else has replaced it.

use futures_util::TryStreamExt;
use lanefs::Volume;
use lanefs_object_store::LaneStore;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion, WriteMultipart};
use std::collections::BTreeSet;

const WRITERS: u64 = 3;
const COMMITS: u64 = 40;

fn manifest() -> Path {
    Path::from("table/manifest")
}

/// Returns the runs that the manifest has, and what it takes to replace it.
async fn runs(store: &LaneStore) -> (Vec<String>, UpdateVersion) {
    let got = store.get(&manifest()).await.unwrap();
    let version = UpdateVersion { e_tag: got.meta.e_tag.clone(), version: None };
    let text = String::from_utf8(got.bytes().await.unwrap().to_vec()).unwrap();
    (text.lines().map(str::to_string).collect(), version)
}

/// Replaces the manifest by what `change` makes of it, as often as it takes.
async fn commit(store: &LaneStore, change: impl Fn(Vec<String>) -> Vec<String>) {
    loop {
        let (now, version) = runs(store).await;
        let next = change(now).join("\n");
        match store.put_opts(&manifest(), next.into(), PutMode::Update(version).into()).await {
            Ok(_) => return,
            Err(Error::Precondition { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

/// Returns the numbers in a run.
async fn numbers(store: &LaneStore, run: &str) -> BTreeSet<u64> {
    let bytes = store.get(&Path::from(run)).await.unwrap().bytes().await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap().split_whitespace().map(|n| n.parse().unwrap()).collect()
}

async fn write_run(store: &LaneStore, name: &str, numbers: &BTreeSet<u64>) {
    let mut upload = WriteMultipart::new(store.put_multipart(&Path::from(name)).await.unwrap());
    for n in numbers {
        upload.write(format!("{n}\n").as_bytes());
    }
    upload.finish().await.unwrap();
}

async fn writer(store: LaneStore, me: u64) {
    for n in 0..COMMITS {
        let run = format!("table/runs/{me}/{n}");
        write_run(&store, &run, &BTreeSet::from([me * COMMITS + n])).await;
        commit(&store, |mut all| {
            all.push(run.clone());
            all
        })
        .await;
    }
}

/// Merges the runs that there are into one, and removes them.
async fn compact(store: &LaneStore, round: u64) {
    let (old, _) = runs(store).await;
    let mut all = BTreeSet::new();
    for run in &old {
        all.append(&mut numbers(store, run).await);
    }
    let merged = format!("table/runs/merged/{round}");
    write_run(store, &merged, &all).await;
    commit(store, |now| {
        let rest = now.into_iter().filter(|r| !old.contains(r));
        std::iter::once(merged.clone()).chain(rest).collect()
    })
    .await;
    for run in &old {
        store.delete(&Path::from(run.as_str())).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_and_a_compaction_share_a_table_and_lose_no_number() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.lane");
    Volume::create(&[&image], 128 << 20).unwrap();
    let open =
        || Volume::open(&[&image], &lanefs::MountOptions { cache_size: 32 << 20, ..Default::default() });
    let volume = open().unwrap();
    let store = LaneStore::new(&volume).unwrap();
    store.put_opts(&manifest(), "".into(), PutMode::Create.into()).await.unwrap();
    let writers: Vec<_> = (0..WRITERS).map(|me| tokio::spawn(writer(store.clone(), me))).collect();
    let mut round = 0;
    while !writers.iter().all(|w| w.is_finished()) {
        compact(&store, round).await;
        round += 1;
    }
    for w in writers {
        w.await.unwrap();
    }
    drop(store);
    volume.close().unwrap();
    // Opened again: each number once, and no object that the manifest does not have.
    let volume = open().unwrap();
    let store = LaneStore::new(&volume).unwrap();
    let (all, _) = runs(&store).await;
    let mut found = Vec::new();
    for run in &all {
        found.extend(numbers(&store, run).await);
    }
    found.sort_unstable();
    assert_eq!(found, (0..WRITERS * COMMITS).collect::<Vec<_>>());
    let objects: Vec<_> = store.list(Some(&"table/runs".into())).try_collect().await.unwrap();
    assert_eq!(objects.len(), all.len(), "{round} rounds of merging");
    drop(store);
    volume.close().unwrap();
}
