//! One random state of the medium after a power loss. All states, in order: `crash::states`, which
//! has the fault model.

use crate::crash::image::{BLOCK, Image};
use lanefs_lab_model::generate::Rng;
use lanefs_store::device::{Crash, Log, Payload};

/// Returns an image that the medium may hold at instant `at`, and its kind in words: all that is
/// durable, and of the rest none, all that was answered, all, a random part, or a random part with
/// a block that was torn.
pub fn crashed(log: &Log, base: &Image, at: u64, rng: &mut Rng) -> (Image, String) {
    let crash = Crash::new(log, at);
    let mut image = base.clone();
    let kind = rng.below(6);
    let put = |w: usize, image: &mut Image, keep: &mut dyn FnMut() -> u8| {
        let w = &log.writes[w];
        for i in 0..w.payload.len() as usize / BLOCK {
            let block = w.offset as usize / BLOCK + i;
            match (&w.payload, keep()) {
                (_, 0) => {}
                (Payload::Bytes(b), sectors) => image.put(block, &b[i * BLOCK..(i + 1) * BLOCK], sectors),
                (Payload::Discard(_), sectors) => image.put(block, &[0; BLOCK], sectors),
            }
        }
    };
    for &w in crash.durable() {
        put(w, &mut image, &mut || 0xff);
    }
    for &w in crash.pending() {
        let answered = log.writes[w].completed.is_some_and(|c| c < at);
        put(w, &mut image, &mut || match kind {
            0 => 0,
            1 => 0xff * u8::from(answered),
            2 => 0xff,
            3 | 4 => 0xff * u8::from(rng.one_in(2)),
            _ => match rng.below(4) {
                0 => rng.bits() as u8,
                n => 0xff * u8::from(n > 1),
            },
        });
    }
    (image, format!("of {} volatile writes choice {kind}", crash.pending().len()))
}
