//! What a volume says by itself: that it waits for space on the host of its image, and that it goes
//! on. Calls of the program wait meanwhile, and nobody else would tell why.

use std::fmt::{Debug, Write};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The module whose messages are for who runs the program.
const FROM: &str = "lanefs_store::device::host";

/// Hands each message to a function.
struct Notices(fn(&str));

/// Has `say` be called with what the volume says.
pub fn begin(say: fn(&str)) {
    // Nobody else sets one here.
    let _ = tracing::subscriber::set_global_default(Notices(say));
}

impl Subscriber for Notices {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.is_event() && about.target() == FROM && *about.level() <= Level::WARN
    }
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }
    fn event(&self, event: &Event<'_>) {
        let mut text = Message(String::new());
        event.record(&mut text);
        (self.0)(&text.0);
    }
    // None is enabled.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The text of a message.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            // Writing to a string does not fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}
