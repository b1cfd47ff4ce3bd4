//! A seeded fuzzer in this process: images that are damaged behind their checksums, and bytes for
//! every decoder.
//!
//! 1. A valid image (`seeds`) is changed in one to four places, mostly fields of structures, and
//!    every checksum and every reference up to the checkpoint slot is made right again (`mutate`):
//!    so the damage is believed until somebody looks at what it says.
//! 2. Whatever an image says, opening, reading, writing, checking and repairing it ends, within
//!    [`images::TIME`] and [`images::MEMORY`], with an answer or an error (`images`). Nothing
//!    panics, in no thread.
//! 3. A repair leaves nothing that a second repair would change, and a repaired volume opens.
//! 4. A case follows from its number alone, so `cargo xtask fuzz --seed N --cases 1` does it again.

pub mod decoders;
pub mod images;
pub mod meter;
pub mod mutate;
pub mod seeds;

use lanefs_lab_model::generate::Rng;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// The mistake that one case found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The case.
    pub seed: u64,
    /// The changes that were made, and the image to which.
    pub transcript: String,
    /// The event that should not have happened.
    pub what: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}: {}\n  {}", self.seed, self.what, self.transcript)
    }
}

thread_local! {
    static TRANSCRIPT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Panics of any thread since it was last looked.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Adds to what is told of this case if it fails.
pub(crate) fn tell(what: impl std::fmt::Display) {
    TRANSCRIPT.with(|s| {
        let mut s = s.borrow_mut();
        if !s.is_empty() {
            s.push_str("; ");
        }
        s.push_str(&what.to_string());
    });
}

/// Lets panics be counted instead of printed. Once per process.
pub fn watch_panics() {
    std::panic::set_hook(Box::new(|info| {
        let trace = std::backtrace::Backtrace::force_capture().to_string();
        let frames: Vec<&str> = trace
            .lines()
            .filter(|l| l.trim_start().starts_with("at ") && l.contains("crates/lanefs"))
            .map(str::trim)
            .take(6)
            .collect();
        let text = format!("{info} [{}]", frames.join(" < "));
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }));
}

/// One case: an image seven times of eight, else bytes for the decoders.
pub fn case(seed: u64) -> Result<(), Finding> {
    TRANSCRIPT.with(|s| s.borrow_mut().clear());
    let mut rng = Rng::new(seed);
    let done = catch_unwind(AssertUnwindSafe(|| match rng.below(8) {
        0 => decoders::case(&mut rng),
        _ => images::case(&mut rng),
    }));
    let transcript = TRANSCRIPT.with(|s| s.borrow().clone());
    let panics = std::mem::take(&mut *PANICS.lock().unwrap_or_else(PoisonError::into_inner));
    let fail = |what: String| Err(Finding { seed, transcript: transcript.clone(), what });
    if let Some(p) = panics.first() {
        return fail(format!("panic: {p}"));
    }
    match done {
        Ok(Ok(())) => Ok(()),
        Ok(Err(what)) => fail(what),
        Err(p) => {
            let text = p.downcast_ref::<String>().cloned();
            let text = text.or_else(|| p.downcast_ref::<&str>().map(|s| (*s).into())).unwrap_or_default();
            fail(format!("panic: {text}"))
        }
    }
}
