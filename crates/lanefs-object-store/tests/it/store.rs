//! The tests that come with the trait, and what they do not ask.

use futures_util::{StreamExt, TryStreamExt};
use lanefs::Volume;
use lanefs_object_store::LaneStore;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, UpdateVersion, integration,
};

fn store() -> (Volume, LaneStore) {
    let volume = Volume::in_memory(64 << 20).unwrap();
    let store = LaneStore::new(&volume).unwrap();
    (volume, store)
}

async fn names(store: &LaneStore, prefix: Option<&str>) -> Vec<String> {
    let prefix = prefix.map(Path::from);
    let found: Vec<_> = store.list(prefix.as_ref()).try_collect().await.unwrap();
    let mut names: Vec<String> = found.into_iter().map(|m| m.location.to_string()).collect();
    names.sort();
    names
}

/// As the trait's own stores are tested.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tests_of_the_trait_pass() {
    for (dir, sync) in [("/", true), ("/deep/down", true), ("quick", false)] {
        let volume = Volume::in_memory(512 << 20).unwrap();
        let store = LaneStore::below(volume.fs(), dir).unwrap().with_sync(sync);
        integration::put_get_delete_list(&store).await;
        integration::get_opts(&store).await;
        integration::list_uses_directories_correctly(&store).await;
        integration::list_with_delimiter(&store).await;
        integration::rename_and_copy(&store).await;
        integration::copy_if_not_exists(&store).await;
        integration::copy_rename_nonexistent_object(&store).await;
        integration::stream_get(&store).await;
        integration::put_opts(&store, true).await;
        integration::put_get_attributes(&store).await;
        integration::list_with_offset_exclusivity(&store).await;
        integration::multipart_race_condition(&store, true).await;
        integration::multipart_out_of_order(&store).await;
        let missing = integration::get_nonexistent_object(&store, None).await;
        assert!(matches!(missing, Err(Error::NotFound { .. })), "{missing:?}");
        let left: Vec<Path> = store.list(None).map_ok(|m| m.location).try_collect().await.unwrap();
        let left = store.delete_stream(futures_util::stream::iter(left.into_iter().map(Ok)).boxed());
        left.try_collect::<Vec<_>>().await.unwrap();
        let all = store.list_with_delimiter(None).await.unwrap();
        assert!(all.objects.is_empty() && all.common_prefixes.is_empty(), "{store}: {all:?}");
    }
}

#[tokio::test]
async fn a_copy_is_an_object_of_its_own_and_is_renamed_like_one() {
    let (_volume, store) = store();
    let (a, b, c) = (Path::from("a"), Path::from("d/b"), Path::from("c"));
    store.put(&a, "one".into()).await.unwrap();
    store.copy(&a, &b).await.unwrap();
    // Names of one file: nothing is lost, and nothing is left.
    store.copy(&a, &b).await.unwrap();
    store.copy(&a, &a).await.unwrap();
    store.put(&a, "two".into()).await.unwrap();
    assert_eq!(store.get(&b).await.unwrap().bytes().await.unwrap(), "one");
    store.copy(&a, &c).await.unwrap();
    store.rename(&a, &c).await.unwrap();
    assert_eq!(names(&store, None).await, ["c", "d/b"]);
    store.rename(&c, &c).await.unwrap();
    let taken = store.rename_if_not_exists(&c, &b).await;
    assert!(matches!(taken, Err(Error::AlreadyExists { .. })), "{taken:?}");
    assert!(matches!(store.copy_if_not_exists(&c, &c).await, Err(Error::AlreadyExists { .. })));
    // The directory goes with its last object.
    store.rename(&b, &c).await.unwrap();
    assert_eq!(names(&store, None).await, ["c"]);
    assert!(store.list_with_delimiter(None).await.unwrap().common_prefixes.is_empty());
    assert_eq!(store.get(&c).await.unwrap().bytes().await.unwrap(), "one");
}

#[tokio::test]
async fn what_cannot_be_an_object_is_refused() {
    let (volume, store) = store();
    store.put(&"a".into(), "x".into()).await.unwrap();
    store.put(&"d/b".into(), "x".into()).await.unwrap();
    for location in ["a/below", "d", "", ".lanefs-object-store/x"] {
        let path = Path::from(location);
        let told = store.put(&path, "y".into()).await.unwrap_err();
        assert!(matches!(told, Error::Generic { .. }), "{location}: {told:?}");
        for mode in
            [PutMode::Create, PutMode::Update(UpdateVersion { e_tag: Some("e".into()), version: None })]
        {
            assert!(store.put_opts(&path, "y".into(), mode.into()).await.is_err(), "{location}");
        }
        assert!(store.copy(&"a".into(), &path).await.is_err(), "{location}");
        assert!(store.rename(&"a".into(), &path).await.is_err(), "{location}");
    }
    for location in ["a/below", "d", "none", "none/below"] {
        let path = Path::from(location);
        assert!(matches!(store.get(&path).await, Err(Error::NotFound { .. })), "{location}");
        assert!(matches!(store.head(&path).await, Err(Error::NotFound { .. })), "{location}");
        assert!(matches!(store.delete(&path).await, Err(Error::NotFound { .. })), "{location}");
        assert!(matches!(store.copy(&path, &"e".into()).await, Err(Error::NotFound { .. })), "{location}");
    }
    let long = Path::from("n".repeat(256));
    assert!(store.put(&long, "x".into()).await.unwrap_err().to_string().contains("name"), "it says why");
    assert_eq!(names(&store, None).await, ["a", "d/b"]);
    // Nothing of what failed is left, and what others put there is not shown, unless it is a file.
    assert_eq!(volume.fs().read_dir(".lanefs-object-store").unwrap().count(), 0);
    volume.fs().symlink("a", "link").unwrap();
    volume.fs().mkdir("empty", 0o755).unwrap();
    volume.fs().write("plain", "from elsewhere").unwrap();
    volume.fs().write(b"not \xff UTF-8".as_slice(), "unnameable").unwrap();
    assert_eq!(names(&store, None).await, ["a", "d/b", "plain"]);
    assert_eq!(store.get(&"plain".into()).await.unwrap().bytes().await.unwrap(), "from elsewhere");
}

/// Of many who update one object from what they read, each has changed what it thought.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conditional_updates_lose_none() {
    let (_volume, store) = store();
    let counter = Path::from("dir/counter");
    store.put_opts(&counter, "0".into(), PutMode::Create.into()).await.unwrap();
    let add = |store: LaneStore, counter: Path| async move {
        for _ in 0..50 {
            loop {
                let now = store.get(&counter).await.unwrap();
                let version = UpdateVersion { e_tag: now.meta.e_tag.clone(), version: None };
                let n: u64 = String::from_utf8(now.bytes().await.unwrap().into()).unwrap().parse().unwrap();
                let next = PutPayload::from((n + 1).to_string());
                match store.put_opts(&counter, next, PutMode::Update(version).into()).await {
                    Ok(_) => break,
                    Err(Error::Precondition { .. }) => {}
                    Err(e) => panic!("{e}"),
                }
            }
        }
    };
    let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(add(store.clone(), counter.clone()))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(store.get(&counter).await.unwrap().bytes().await.unwrap(), "200");
}

/// Directories that come and go with their objects disturb nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_last_object_of_a_directory_goes_while_another_comes() {
    let (_volume, store) = store();
    let work = |store: LaneStore, me: usize| async move {
        for _ in 0..200 {
            let (a, b) = (Path::from(format!("x/y/{me}")), Path::from(format!("x/z/{me}")));
            store.put(&a, "content".into()).await.unwrap();
            store.rename(&a, &b).await.unwrap();
            store.delete(&b).await.unwrap();
        }
    };
    let tasks: Vec<_> = (0..4).map(|me| tokio::spawn(work(store.clone(), me))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(store.list_with_delimiter(None).await.unwrap().common_prefixes.is_empty());
}

#[tokio::test]
async fn a_reader_has_the_object_that_it_opened() {
    let (_volume, store) = store();
    let large = Path::from("large");
    let old: Vec<u8> = (0..5_000_000_u32).map(|i| (i / 7) as u8).collect();
    store.put(&large, old.clone().into()).await.unwrap();
    let mut reading = store.get(&large).await.unwrap().into_stream();
    let mut got = reading.next().await.unwrap().unwrap().to_vec();
    store.put(&large, "new".into()).await.unwrap();
    store.delete(&large).await.unwrap();
    while let Some(piece) = reading.next().await {
        got.extend(piece.unwrap());
    }
    assert!(got == old, "{} bytes", got.len());
    let range = GetOptions::new().with_range(Some(GetRange::Suffix(3)));
    assert!(matches!(store.get_opts(&large, range).await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn parts_are_awaited_and_an_upload_that_is_given_up_leaves_nothing() {
    let (volume, store) = store();
    let before = volume.statfs().unwrap();
    let at = Path::from("upload");
    let attributes = Attributes::from_iter([(Attribute::ContentType, "text/plain")]);
    let opts = PutMultipartOptions { attributes: attributes.clone(), ..Default::default() };
    let mut upload = store.put_multipart_opts(&at, opts).await.unwrap();
    let (first, second) = (upload.put_part("one ".into()), upload.put_part("two".into()));
    second.await.unwrap();
    // The first part is not there.
    assert!(upload.complete().await.unwrap_err().to_string().contains("4 bytes"));
    assert!(matches!(store.get(&at).await, Err(Error::NotFound { .. })));
    drop(first);
    let opts = PutMultipartOptions { attributes, ..Default::default() };
    let mut upload = store.put_multipart_opts(&at, opts.clone()).await.unwrap();
    let (first, second) = (upload.put_part("one ".into()), upload.put_part("two".into()));
    second.await.unwrap();
    first.await.unwrap();
    upload.complete().await.unwrap();
    assert!(upload.complete().await.is_err() && upload.abort().await.is_err());
    let got = store.get(&at).await.unwrap();
    assert_eq!(got.attributes, opts.attributes);
    assert_eq!(got.bytes().await.unwrap(), "one two");
    store.delete(&at).await.unwrap();
    for give_up in [true, false] {
        let mut upload = store.put_multipart(&at).await.unwrap();
        upload.put_part(vec![7; 8 << 20].into()).await.unwrap();
        if give_up {
            upload.abort().await.unwrap();
        }
    }
    assert_eq!(names(&store, None).await, [""; 0]);
    // It is freed in the background.
    let used = || before.free.saturating_sub(volume.statfs().unwrap().free);
    for _ in 0..6000 {
        volume.checkpoint().unwrap();
        if used() < 512 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} blocks of what was given up are in use", used());
}

/// Without a runtime of tokio it works all the same.
#[test]
fn no_runtime_is_needed() {
    let (_volume, store) = store();
    futures_util::FutureExt::now_or_never(async {
        store.put_opts(&"a".into(), "x".into(), PutOptions::default()).await.unwrap();
        assert_eq!(store.get(&"a".into()).await.unwrap().bytes().await.unwrap(), "x");
    })
    .expect("nothing is waited for");
}
