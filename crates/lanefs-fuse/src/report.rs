//! What a mount tells of itself and of its volume, to whoever may open a directory of it: a text
//! in JSON (docs/STAT.md), which an `ioctl` writes piece by piece.
//!
//! The argument of [`IOC_REPORT`] has [`REPORT_SIZE`] bytes, in and out, integers little-endian:
//!
//! | bytes | in | out |
//! | --- | --- | --- |
//! | 0 to 7 | the text's number; 0 for a new text | the text's number; 0 if it is not kept any more |
//! | 8 to 15 | the offset of the piece | the length of the text |
//! | 16 to 23 | seconds for which requests are to be timed; 0 for not | the length of the piece |
//! | from 24 | | the piece |
//!
//! Requests are timed only for root and whoever serves the mount; of others the wish is passed
//! over. The last few texts are kept, so that one is read as it was made.

use crate::counts::{Counts, Requests, Sums};
use lanefs::{Report, Volume};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bytes of the argument.
pub const REPORT_SIZE: usize = 16_000;
/// `ioctl` on a directory of the mount: writes a piece of the report.
pub const IOC_REPORT: u32 = 3 << 30 | (REPORT_SIZE as u32) << 16 | 0x4c07;

/// Bytes before the piece.
const HEAD: usize = 24;
/// Texts that are kept.
const KEPT: usize = 4;

const _: () = assert!(REPORT_SIZE < 1 << 14, "the command's number has 14 bits for it");

/// A mount and its volume.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct MountReport {
    /// Seconds since the mount was made.
    pub mounted_seconds: f64,
    /// Whether requests are timed at this moment.
    pub is_timed: bool,
    /// The requests that it served, by their kinds.
    pub requests: Vec<RequestReport>,
    /// The volume.
    pub volume: Report,
}

/// The requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct RequestReport {
    /// The name of the kind in the kernel's sources, in small letters.
    pub kind: String,
    /// How many came.
    pub count: u64,
    /// Bytes of requests behind their headers: names, and what is written.
    pub received_bytes: u64,
    /// Bytes of answers behind their headers: attributes, listings, and what is read.
    pub answered_bytes: u64,
    /// The time that those took which were timed, from when they were read to when their answer
    /// was ready; none if none was.
    pub latency: Option<LatencyReport>,
}

/// Latencies.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct LatencyReport {
    /// Requests that were timed.
    pub count: u64,
    /// Nanoseconds of all of them together.
    pub sum_ns: u64,
    /// Nanoseconds within which half of them were done, up to a quarter too high.
    pub p50_ns: u64,
    /// The same of 99 in a hundred.
    pub p99_ns: u64,
    /// The same of 999 in a thousand.
    pub p999_ns: u64,
    /// The same of all.
    pub max_ns: u64,
    /// Upper bounds in nanoseconds, and how many requests lie below each and not below the one
    /// before; those without any are left out. The bound 2^64 - 1 stands for none.
    pub buckets: Vec<(u64, u64)>,
}

impl LatencyReport {
    /// Makes it of the buckets and the sum. They may come from anybody's mount.
    pub fn new(mut buckets: Vec<(u64, u64)>, sum_ns: u64) -> LatencyReport {
        buckets.sort_unstable();
        let count = buckets.iter().fold(0u64, |sum, b| sum.saturating_add(b.1));
        let below = |parts: u64| {
            // Of a thousand; in wide numbers, as a report may come from anybody.
            let wanted = (u128::from(count) * u128::from(parts)).div_ceil(1000).max(1);
            let mut seen = 0;
            let at = buckets.iter().find(|b| {
                seen += u128::from(b.1);
                seen >= wanted
            });
            at.map_or(0, |b| b.0)
        };
        let (p50_ns, p99_ns, p999_ns, max_ns) = (below(500), below(990), below(999), below(1000));
        debug_assert!(p50_ns <= p99_ns && p99_ns <= p999_ns && p999_ns <= max_ns, "of {buckets:?}");
        LatencyReport { count, sum_ns, p50_ns, p99_ns, p999_ns, max_ns, buckets }
    }

    /// Returns the latencies of those that were timed since `before`.
    pub fn since(&self, before: &LatencyReport) -> LatencyReport {
        let of = |bound: u64| before.buckets.iter().find(|b| b.0 == bound).map_or(0, |b| b.1);
        let left = self.buckets.iter().map(|b| (b.0, b.1.saturating_sub(of(b.0))));
        LatencyReport::new(left.filter(|b| b.1 > 0).collect(), self.sum_ns.saturating_sub(before.sum_ns))
    }
}

impl RequestReport {
    /// Returns the figures of each kind that came at all.
    fn all(requests: &Requests) -> Vec<RequestReport> {
        let of = |(name, sums): (&str, &Sums)| RequestReport {
            kind: name.to_ascii_lowercase(),
            count: sums.requests,
            received_bytes: sums.received,
            answered_bytes: sums.answered,
            latency: sums.buckets().map(|b| LatencyReport::new(b, sums.nanos)),
        };
        let all: Vec<_> = requests.named().map(of).collect();
        debug_assert!(all.iter().all(|r| r.count > 0), "a kind that never came");
        all
    }

    /// Returns the requests since `before`.
    fn since(&self, before: &RequestReport) -> RequestReport {
        let none = LatencyReport::default();
        let latency = self.latency.as_ref().map(|l| l.since(before.latency.as_ref().unwrap_or(&none)));
        RequestReport {
            kind: self.kind.clone(),
            count: self.count.saturating_sub(before.count),
            received_bytes: self.received_bytes.saturating_sub(before.received_bytes),
            answered_bytes: self.answered_bytes.saturating_sub(before.answered_bytes),
            latency: latency.filter(|l| l.count > 0),
        }
    }
}

impl MountReport {
    /// Returns the requests that came since `before`, by kinds that did.
    pub fn requests_since(&self, before: &MountReport) -> Vec<RequestReport> {
        let none = RequestReport::default();
        let then = |kind: &str| before.requests.iter().find(|r| r.kind == kind).unwrap_or(&none);
        self.requests.iter().map(|r| r.since(then(&r.kind))).filter(|r| r.count > 0).collect()
    }
}

/// What tells of a mount and its volume.
#[derive(Clone)]
pub struct Reporter {
    volume: Volume,
    counts: Arc<Counts>,
}

impl Reporter {
    /// Makes it for a mount that counts there.
    pub(crate) fn new(volume: Volume, counts: Arc<Counts>) -> Reporter {
        Reporter { volume, counts }
    }

    /// Returns the figures of this moment.
    ///
    /// # Errors
    /// EIO once the volume is closed.
    pub fn report(&self) -> lanefs::Result<MountReport> {
        let volume = self.volume.report()?;
        let requests: Requests = self.counts.all();
        debug_assert!(requests.waited_for() <= requests.by_kind().iter().map(|k| k.1).sum());
        Ok(MountReport {
            mounted_seconds: self.counts.age().as_secs_f64(),
            is_timed: self.counts.is_timed(),
            requests: RequestReport::all(&requests),
            volume,
        })
    }

    /// Has requests timed for so long, an hour at most.
    pub fn watch(&self, time: Duration) {
        self.counts.watch(time);
    }
}

/// The texts that readers are at.
#[derive(Default)]
struct Texts {
    /// The number of the last.
    last: u64,
    kept: VecDeque<(u64, Arc<[u8]>)>,
}

/// What serves the `ioctl`.
pub(crate) struct Reports {
    reporter: Reporter,
    texts: Mutex<Texts>,
}

impl Reports {
    /// Makes it, without a text.
    pub(crate) fn new(reporter: Reporter) -> Reports {
        Reports { reporter, texts: Mutex::default() }
    }

    /// Serves [`IOC_REPORT`], for somebody who may have requests timed if `may_watch`. `None` if
    /// the request makes no sense.
    pub(crate) fn serve(&self, request: &[u8], may_watch: bool) -> Option<lanefs::Result<Vec<u8>>> {
        let word = |n: usize| Some(u64::from_le_bytes(request.get(n * 8..n * 8 + 8)?.try_into().ok()?));
        let (number, offset, seconds) = (word(0)?, word(1)?, word(2)?);
        if seconds > 0 && may_watch {
            self.reporter.watch(Duration::from_secs(seconds));
        }
        let text = match number {
            0 => match self.make() {
                Ok(made) => Some(made),
                Err(e) => return Some(Err(e)),
            },
            number => self.texts().kept.iter().find(|t| t.0 == number).cloned(),
        };
        let (number, text) = text.unwrap_or_default();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        debug_assert!(from <= text.len(), "behind its end");
        let piece = &text[from..text.len().min(from.saturating_add(REPORT_SIZE - HEAD))];
        let mut out = Vec::with_capacity(REPORT_SIZE);
        [number, text.len() as u64, piece.len() as u64].iter().for_each(|w| out.extend(w.to_le_bytes()));
        out.extend(piece);
        out.resize(REPORT_SIZE, 0);
        debug_assert!(decode_piece(&out).is_some_and(|p| p.bytes == piece), "what a reader finds");
        Some(Ok(out))
    }

    fn texts(&self) -> std::sync::MutexGuard<'_, Texts> {
        // A panic while the lock was held left a whole list.
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a text and keeps it.
    fn make(&self) -> lanefs::Result<(u64, Arc<[u8]>)> {
        let text = serde_json::to_vec(&self.reporter.report()?);
        // Numbers, texts and lists: there is nothing that JSON cannot hold.
        let text: Arc<[u8]> = text.map_err(|_| lanefs::Error::Posix(libc::EIO))?.into();
        let mut texts = self.texts();
        texts.last += 1;
        let made = (texts.last, text);
        texts.kept.push_back(made.clone());
        if texts.kept.len() > KEPT {
            texts.kept.pop_front();
        }
        debug_assert!(texts.kept.iter().is_sorted_by_key(|t| t.0) && made.0 > 0, "0 stands for none");
        Ok(made)
    }
}

/// Encodes the argument of the caller.
pub fn encode_request(number: u64, offset: u64, seconds: u64) -> Vec<u8> {
    let mut out: Vec<u8> = [number, offset, seconds].iter().flat_map(|w| w.to_le_bytes()).collect();
    debug_assert_eq!(out.len(), HEAD);
    out.resize(REPORT_SIZE, 0);
    out
}

/// A piece of a text.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The text's number; 0 if it is not kept any more.
    pub number: u64,
    /// The length of the whole text.
    pub total: u64,
    /// The piece; empty behind the end.
    pub bytes: &'a [u8],
}

/// Decodes an answer; `None` if it is none.
pub fn decode_piece(answer: &[u8]) -> Option<Piece<'_>> {
    let word = |n: usize| Some(u64::from_le_bytes(answer.get(n * 8..n * 8 + 8)?.try_into().ok()?));
    let length = usize::try_from(word(2)?).ok()?;
    let bytes = answer.get(HEAD..)?.get(..length)?;
    Some(Piece { number: word(0)?, total: word(1)?, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports() -> (Volume, Reports) {
        let volume = Volume::in_memory(16 << 20).unwrap();
        let reporter = Reporter::new(volume.clone(), Arc::new(Counts::new()));
        (volume, Reports::new(reporter))
    }

    #[test]
    fn a_text_is_read_piece_by_piece_as_it_was_made() {
        let (volume, reports) = reports();
        let ask = |number, offset| {
            let answer = reports.serve(&encode_request(number, offset, 0), false).unwrap().unwrap();
            let p = decode_piece(&answer).unwrap();
            (p.number, p.total, p.bytes.to_vec())
        };
        let (number, total, first) = ask(0, 0);
        volume.fs().write("/f", b"later").unwrap();
        assert_eq!((ask(number, 0).2, first.len() as u64), (first.clone(), total));
        let report: MountReport = serde_json::from_slice(&first).unwrap();
        assert_eq!(report.volume.store.segments.by_utilisation.len(), 10);
        assert_eq!(ask(number, 10).2, first[10..]);
        assert_eq!((ask(number, total).2, ask(number, u64::MAX).2), (vec![], vec![]));
        // Only the last few are kept.
        (0..KEPT).for_each(|_| drop(ask(0, 0)));
        assert_eq!((ask(number, 0), ask(u64::MAX, 0)), ((0, 0, vec![]), (0, 0, vec![])));
        volume.close().unwrap();
        assert_eq!(reports.serve(&encode_request(0, 0, 0), true).unwrap().unwrap_err().errno(), libc::EIO);
        assert!(reports.serve(&[1; 23], true).is_none());
    }

    #[test]
    fn requests_are_timed_for_those_who_may_ask() {
        let (_volume, reports) = reports();
        let watch = |may, seconds| {
            reports.serve(&encode_request(0, 0, seconds), may).unwrap().unwrap();
            reports.reporter.counts.is_timed()
        };
        assert_eq!([watch(false, 9), watch(true, 0), watch(true, u64::MAX)], [false, false, true]);
    }

    #[test]
    fn quantiles_are_upper_bounds() {
        let l = LatencyReport::new(vec![(1024, 989), (2048, 10), (u64::MAX, 1)], 5);
        assert_eq!((l.count, l.p50_ns, l.p99_ns, l.p999_ns), (1000, 1024, 2048, 2048));
        assert_eq!(l.max_ns, u64::MAX);
        assert_eq!(LatencyReport::new(vec![], 0), LatencyReport::default());
        let before = LatencyReport::new(vec![(1024, 989), (2048, 9)], 3);
        assert_eq!(l.since(&before), LatencyReport::new(vec![(2048, 1), (u64::MAX, 1)], 2));
    }
}
