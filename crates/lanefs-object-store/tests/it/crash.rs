//! What a power loss leaves: all that was acknowledged, whole, and nothing else.

use futures_util::TryStreamExt;
use lanefs::{Cred, MountOptions, Order, Volume};
use lanefs_object_store::LaneStore;
use lanefs_store::device::{Crash, Device, MemoryDevice, MemoryImage, Recorder};
use lanefs_store::{FormatOptions, Store};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode};
use std::collections::BTreeMap;
use std::sync::Arc;

const OPERATIONS: u64 = 60;

/// The objects, by location.
type Objects = BTreeMap<String, Vec<u8>>;

/// What the object of an operation holds.
fn content(n: u64) -> Vec<u8> {
    format!("{n} ").repeat(1 + (n * 977 % 4000) as usize).into_bytes()
}

fn location(n: u64) -> String {
    format!("{}/{}", ["a", "b/c", "d"][(n % 3) as usize], n % 7)
}

/// The objects after an operation.
fn after(mut objects: Objects, n: u64) -> Objects {
    let (old, new) = (location(n / 2), location(n));
    match n % 5 {
        0..=2 => drop(objects.insert(new, content(n))),
        3 => {
            if let Some(held) = objects.remove(&old) {
                objects.insert(new, held);
            }
        }
        _ => drop(objects.remove(&old)),
    }
    objects
}

/// Does it; what is not there is no matter.
async fn operation(store: &LaneStore, n: u64) {
    let (old, new) = (Path::from(location(n / 2)), Path::from(location(n)));
    let _ = match n % 5 {
        0 => store.put(&new, content(n).into()).await.map(drop),
        1 => {
            let mode = store.head(&new).await.map_or(PutMode::Create, |m| {
                PutMode::Update(object_store::UpdateVersion { e_tag: m.e_tag, version: None })
            });
            store.put_opts(&new, content(n).into(), mode.into()).await.map(drop)
        }
        2 => {
            let mut upload = store.put_multipart(&new).await.unwrap();
            let all = content(n);
            let (one, two) = all.split_at(all.len() / 3);
            upload.put_part(one.to_vec().into()).await.unwrap();
            upload.put_part(two.to_vec().into()).await.unwrap();
            upload.complete().await.map(drop)
        }
        3 => store.rename(&old, &new).await,
        _ => store.delete(&old).await,
    };
}

async fn found(store: &LaneStore) -> Objects {
    let mut objects = Objects::new();
    for meta in store.list(None).try_collect::<Vec<_>>().await.unwrap() {
        let bytes = store.get(&meta.location).await.unwrap().bytes().await.unwrap();
        objects.insert(meta.location.to_string(), bytes.to_vec());
    }
    objects
}

fn open(device: Arc<dyn Device>, order: Order) -> Volume {
    let options = MountOptions { background: false, cache_size: 32 << 20, order, ..Default::default() };
    Volume::open_devices(vec![device], &options).unwrap()
}

async fn survives(order: Order) {
    let plain: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20).unwrap());
    Store::format(
        std::slice::from_ref(&plain),
        &FormatOptions { segment_blocks: 64, mlogs: 2, ..Default::default() },
    )
    .unwrap();
    let base = MemoryImage::capture(&plain).unwrap();
    let recorder = Recorder::new();
    let volume = open(Arc::new(recorder.wrap(base.fork().unwrap())), order);
    let store = LaneStore::below(volume.as_user(Cred::root()), "objects").unwrap();
    let mut states = vec![Objects::new()];
    for n in 0..OPERATIONS {
        operation(&store, n).await;
        recorder.mark("done");
        states.push(after(states[n as usize].clone(), n));
        if n % 20 == 19 {
            volume.checkpoint().unwrap();
        }
    }
    assert!(found(&store).await == states[OPERATIONS as usize], "the model is wrong");
    let log = recorder.log();
    drop((store, volume));
    let instants: Vec<u64> = Crash::instants(&log).collect();
    for (i, at) in instants.iter().enumerate().step_by((instants.len() / 120).max(1)) {
        let crash = Crash::new(&log, *at);
        let left = crash.build_random(std::slice::from_ref(&base), i as u64).unwrap().remove(0);
        let volume = open(Arc::new(left), order);
        let store = LaneStore::below(volume.as_user(Cred::root()), "objects").unwrap();
        let now = found(&store).await;
        let done = crash.marks().count();
        let matches = states[done..].iter().take(2).any(|s| *s == now);
        assert!(matches, "{order:?}, instant {at}: after {done} operations there are {:?}", now.keys());
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_power_loss_in_an_ordered_volume() {
    survives(Order::Ordered).await;
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_power_loss_in_a_relaxed_volume() {
    survives(Order::Relaxed).await;
}
