//! Volumes of several devices that grow, and lose power while they do.

use crate::change::{each_state_of, fsck_all, longer, size};
use crate::common::*;
use crate::model::{Model, Told};
use lanefs_store::device::{Device, MemoryImage, Recorder};
use lanefs_store::*;
use lanefs_sync::random::Rng;
use std::sync::Arc;

const SMALL: u64 = 2 << 20;
const LARGE: u64 = 4 << 20;

/// A volume on two devices of [`SMALL`] bytes, of which the second one is longer.
fn pair() -> Vec<Arc<MemoryImage>> {
    let dd = [memory(SMALL), memory(SMALL)];
    Store::format(&dd, &format_options()).unwrap();
    vec![longer(&dd[0], SMALL), longer(&dd[1], LARGE)]
}

fn fork(images: &[Arc<MemoryImage>]) -> Vec<Dev> {
    images.iter().map(|i| Arc::new(i.fork().unwrap()) as Dev).collect()
}

fn recorded(images: &[Arc<MemoryImage>], recorder: &Arc<Recorder>) -> Vec<Dev> {
    images.iter().map(|i| Arc::new(recorder.wrap(i.fork().unwrap())) as Dev).collect()
}

fn why<T>(r: Result<T>) -> String {
    r.err().expect("it is refused").to_string()
}

#[test]
fn a_power_loss_while_the_last_of_two_devices_grows_leaves_the_old_size_or_the_new() {
    let bases = pair();
    let recorder = Recorder::new();
    let (s, _) = open_all(&recorded(&bases, &recorder));
    let mut m = Model::new(&s);
    let mut r = Rng::new(3);
    for _ in 0..60 {
        m.step(&s, &mut r, &*recorder).unwrap();
    }
    m.fold(&s, &*recorder).unwrap();
    let (from, before) = (recorder.log().now, s.space());
    assert_eq!(s.grow(None).unwrap(), Grown { before: SMALL, after: LARGE });
    let grown = recorder.log().now;
    assert!(s.space().total > before.total + 300 && size(&s) == SMALL + LARGE);
    s.audit().unwrap();
    for _ in 0..20 {
        m.step(&s, &mut r, &*recorder).unwrap();
    }
    drop(s);
    let to = recorder.log().now.min(grown + 12);
    let (mut old, mut new) = (0, 0);
    each_state_of(&bases, &recorder, from, to, |crash, images, context| {
        let told = Told::new(crash.marks());
        fsck_all(&fork(&images), context);
        let dd = fork(&images);
        let (s, _) = open_all(&dd);
        m.check(&s, &told, context);
        match size(&s) - SMALL {
            SMALL if crash.at() <= grown => old += 1,
            LARGE => new += 1,
            other => panic!("{context}: {other} bytes"),
        }
        s.close().unwrap();
        drop(s);
        fsck_all(&dd, context);
        // With its first block lost a device is what a copy says, which is no less.
        for lost in [0, 1] {
            let dd: Vec<Dev> = images
                .iter()
                .enumerate()
                .map(|(i, image)| {
                    let d = image.fork().unwrap();
                    if i == lost {
                        d.poke(0, &[0; BLOCK_SIZE]).unwrap();
                    }
                    Arc::new(d) as Dev
                })
                .collect();
            m.check(&open_all(&dd).0, &told, &format!("{context}, without the first block of {lost}"));
        }
    });
    assert!(old > 10 && new > 10, "{old} and {new}");
}

/// What a change that was cut short has left on a device says nothing any more once the volume was
/// open for writing.
#[test]
fn copies_of_a_change_that_was_cut_short_are_written_again_by_an_open() {
    let bases = pair();
    let recorder = Recorder::new();
    let (s, _) = open_all(&recorded(&bases, &recorder));
    let from = recorder.log().now;
    s.grow(None).unwrap();
    let to = recorder.log().now;
    drop(s);
    each_state_of(&bases, &recorder, from, to, |_, images, context| {
        let dd = fork(&images);
        let (s, _) = open_all(&dd);
        let size = s.info().total_blocks;
        s.close().unwrap();
        drop(s);
        let images: Vec<_> = dd.iter().map(|d| longer(d, d.size())).collect();
        for d in 0..2 {
            let lost = images[d].fork().unwrap();
            lost.poke(0, &[0; BLOCK_SIZE]).unwrap();
            let mut with = fork(&images);
            with[d] = Arc::new(lost);
            assert_eq!(open_all(&with).0.info().total_blocks, size, "{context}, device {d}");
        }
    });
}

fn bytes(d: &Dev) -> Vec<u8> {
    let mut blocks = vec![Block([0; BLOCK_SIZE]); d.size() as usize / BLOCK_SIZE];
    for (i, b) in blocks.iter_mut().enumerate() {
        let offset = (i * BLOCK_SIZE) as u64;
        d.read(&mut [lanefs_store::device::ReadReq { offset, data: &mut b.0 }]).unwrap();
    }
    blocks.iter().flat_map(|b| b.0).collect()
}

#[test]
fn only_the_last_device_grows_and_what_is_said_names_it() {
    let images = [longer(&memory(SMALL), LARGE), longer(&memory(SMALL), SMALL)];
    let dd: Vec<Dev> = ["first", "second"]
        .iter()
        .zip(&images)
        .map(|(name, i)| Arc::new(i.fork().unwrap().named(*name)) as Dev)
        .collect();
    // The first one is longer than the volume knows.
    let short = [memory(SMALL), memory(SMALL)];
    Store::format(&short, &format_options()).unwrap();
    for (from, to) in short.iter().zip(&dd) {
        for (i, b) in bytes(from).chunks(BLOCK_SIZE).enumerate() {
            let mut block = Block::zeroed();
            block.0.copy_from_slice(b);
            let offset = (i * BLOCK_SIZE) as u64;
            to.write(&[lanefs_store::device::WriteReq { offset, data: &block.0 }]).unwrap();
        }
    }
    let (s, _) = open_all(&dd);
    let said = why(s.grow(None));
    assert!(
        said.contains("first: was made longer") && said.contains("only the last one grows, second"),
        "{said}"
    );
    let said = why(s.grow(Some(LARGE)));
    assert!(said.contains("second") && said.contains("leave the size out"), "{said}");
    assert!(why(s.grow(Some(4096))).contains("cannot be made smaller"));
    assert_eq!(size(&s), 2 * SMALL);
}

#[test]
fn a_device_that_is_missing_is_named() {
    let dd = fork(&pair());
    let said = why(Store::open(vec![dd[0].clone()], &OpenOptions::default()));
    assert!(said.contains("device 1 is missing") && said.contains("-4"), "{said}");
    let said = why(Store::open(vec![dd[1].clone()], &OpenOptions::default()));
    assert!(said.contains("device 0 of the volume is missing"), "{said}");
    let other = fork(&pair());
    let said =
        why(Store::open(vec![dd[0].clone(), dd[1].clone(), other[1].clone()], &OpenOptions::default()));
    assert!(said.contains("given twice"), "{said}");
}
