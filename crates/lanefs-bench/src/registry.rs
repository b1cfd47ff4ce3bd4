//! The table of workloads: name, kind, and the runner compiled for each kind of target.

use crate::error::{Failure, Res};
use crate::runner::{CellOutcome, Plan, run};
use crate::target::{DirTarget, OpenTarget, VolumeTarget};
use crate::workload::Info;
use crate::workload::external::*;
use crate::workload::micro::*;
use crate::workload::papers::*;
use crate::workload::yardsticks::*;

/// The origin of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// FxMark's nineteen.
    Micro,
    /// In the manner of FxMark, and not among its nineteen.
    More,
    /// The macro workloads of the papers.
    Papers,
    /// Programs of their own: mounted file systems only.
    External,
    /// A yardstick that the others are held against.
    Yardstick,
}

/// One workload, ready to run.
pub struct Entry {
    /// Its name and description.
    pub info: Info,
    /// Its origin.
    pub group: Group,
    dir: fn(&mut DirTarget, &Plan) -> Res<CellOutcome>,
    volume: fn(&mut VolumeTarget, &Plan) -> Res<CellOutcome>,
}

impl Entry {
    /// Runs it once.
    pub fn run(&self, target: &mut OpenTarget, plan: &Plan) -> Res<CellOutcome> {
        match target {
            OpenTarget::Dir(t) => (self.dir)(t, plan),
            OpenTarget::Volume(t) => (self.volume)(t, plan),
        }
    }
}

macro_rules! entry {
    ($group:ident, $info:expr, generic $worker:ident) => {
        Entry {
            info: $info,
            group: Group::$group,
            dir: run::<DirTarget, $worker<DirTarget>>,
            volume: run::<VolumeTarget, $worker<VolumeTarget>>,
        }
    };
    ($group:ident, $info:expr, plain $worker:ident) => {
        Entry {
            info: $info,
            group: Group::$group,
            dir: run::<DirTarget, $worker>,
            volume: run::<VolumeTarget, $worker>,
        }
    };
}

macro_rules! table {
    ($($group:ident $module:ident $kind:ident $worker:ident),* $(,)?) => {
        $(use $module::$worker;)*
        static ALL: &[Entry] = &[$(entry!($group, $module::INFO, $kind $worker)),*];
    };
}

table! {
    Micro dwal generic Dwal,
    Micro dwol generic Dwol,
    Micro dwom generic Dwom,
    Micro dwsl generic Dwsl,
    Micro dwtl generic Dwtl,
    Micro drbl generic Drbl,
    Micro drbm generic Drbm,
    Micro drbh generic Drbh,
    Micro mrpl plain Mrpl,
    Micro mrpm plain Mrpm,
    Micro mrph plain Mrph,
    Micro mrdl plain Mrdl,
    Micro mrdm plain Mrdm,
    Micro mwcl plain Mwcl,
    Micro mwcm plain Mwcm,
    Micro mwul plain Mwul,
    Micro mwum plain Mwum,
    Micro mwrl plain Mwrl,
    Micro mwrm plain Mwrm,
    More create_unlink plain CreateUnlink,
    Papers varmail plain Varmail,
    Papers varmail_private plain VarmailPrivate,
    Papers fileserver plain Fileserver,
    Papers mailbench_p plain MailbenchP,
    Papers mailbench_s plain MailbenchS,
    Papers largefile plain Largefile,
    Papers smallfile plain Smallfile,
    Papers mdtest_create plain MdtestCreate,
    Papers mdtest_stat plain MdtestStat,
    Papers mdtest_remove plain MdtestRemove,
    Papers fig1 plain Fig1,
    Papers exim plain Exim,
    Papers dbench generic Dbench,
    Papers dbench_sync generic DbenchSync,
    External rocksdb plain Rocksdb,
    Yardstick memcpy plain Memcpy,
    Yardstick raw_sync generic RawSync,
    Yardstick seq_read generic SeqRead,
    Yardstick seq_write generic SeqWrite,
}

/// Returns all workloads.
pub fn all() -> &'static [Entry] {
    ALL
}

/// Returns the workloads a list names: names in any case, `all` (the nineteen), `more`, `papers`,
/// `external`, `yardsticks`, `everything`; each once.
pub fn select(list: &[String]) -> Res<Vec<&'static Entry>> {
    let mut chosen: Vec<&'static Entry> = Vec::new();
    for name in list.iter().flat_map(|l| l.split(',')).map(str::trim).filter(|n| !n.is_empty()) {
        let before = chosen.len();
        let mut matched = false;
        for entry in ALL {
            let hit = match name.to_ascii_lowercase().as_str() {
                "all" | "micro" | "fxmark" => entry.group == Group::Micro,
                "more" => entry.group == Group::More,
                "papers" | "macro" => entry.group == Group::Papers,
                "external" => entry.group == Group::External,
                "yardsticks" => entry.group == Group::Yardstick,
                "everything" => true,
                other => entry.info.name.eq_ignore_ascii_case(other),
            };
            matched |= hit;
            if hit && !chosen[..before].iter().any(|e| e.info.name == entry.info.name) {
                chosen.push(entry);
            }
        }
        if !matched {
            let names: Vec<&str> = ALL.iter().map(|e| e.info.name).collect();
            return Err(Failure::new(format!(
                "no workload `{name}`; there are all, more, papers, external, yardsticks, everything, {}",
                names.join(", ")
            )));
        }
    }
    debug_assert!(
        chosen.iter().enumerate().all(|(i, e)| chosen[..i].iter().all(|o| o.info.name != e.info.name))
    );
    if chosen.is_empty() {
        return Err(Failure::new("no workload named"));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_fxmark_is_whole() {
        let mut names: Vec<&str> = ALL.iter().map(|e| e.info.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert_eq!(ALL.iter().filter(|e| e.group == Group::Micro).count(), 19);
    }

    #[test]
    fn selection() {
        let pick = |s: &str| select(&[s.to_string()]).map(|v| v.len());
        assert_eq!(pick("all").unwrap(), 19);
        assert_eq!(pick("dwal,DWAL,all").unwrap(), 19);
        assert_eq!(pick("DWSL,mrph").unwrap(), 2);
        assert!(pick("DWXX").is_err());
        assert!(pick("").is_err());
    }
}
