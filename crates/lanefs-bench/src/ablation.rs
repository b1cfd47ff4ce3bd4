//! LaneFS with its techniques taken out: what they are called on the command line, and the sets of
//! them that the papers' figures draw.

use crate::error::{Failure, Res};

/// A technique, what is written after `mem:SIZE,` to take it out, and what stands in its place.
pub struct Key {
    /// The technique's name in results.
    pub technique: &'static str,
    /// The option that takes it out.
    pub key: &'static str,
    /// The replacement in its place.
    pub instead: &'static str,
}

const fn key(technique: &'static str, key: &'static str, instead: &'static str) -> Key {
    Key { technique, key, instead }
}

/// All that can be taken out beside the mlogs (`mlogs=1`) and the lanes (`lanes=1`).
pub const KEYS: &[Key] = &[
    key("rps", "rps=shared", "one count of readers for all, as in a reader-writer semaphore"),
    key("cells", "cells=one", "one group of file cells, behind one lock"),
    key("oplog", "oplog=one", "one list of operations for all lanes, with one lock"),
    key("counter", "counter=one", "one counter of free space for all lanes"),
    key("ids", "ids=scan", "one bitmap of inode numbers, scanned from its start under a mutex"),
    key("one-log", "full=lanes", "each mlog goes on where hardly anything is free"),
    key("paths", "paths=walk", "each path is walked from its first component on"),
    key("trails", "trails=none", "no memory is asked for before a path is walked"),
];

/// A LaneFS of the ablation figure.
pub struct Variant {
    /// Its name in the results.
    pub name: &'static str,
    /// The options added to `mem:SIZE`.
    pub spec: &'static str,
    /// One line for people.
    pub about: &'static str,
}

const fn variant(name: &'static str, spec: &'static str, about: &'static str) -> Variant {
    Variant { name, spec, about }
}

/// As usual; each technique off; then ScaleXFS's D and DP (its DPS is LaneFS as usual), Max's steps
/// from nothing, and all of these off.
pub const VARIANTS: &[Variant] = &[
    variant("lanefs", "", "as usual (ScaleXFS's DPS)"),
    variant("no-rps", ",rps=shared", "one count of readers in place of the pass-through semaphore"),
    variant("no-cells", ",cells=one", "one group of file cells"),
    variant("no-mlogs", ",mlogs=1", "one mlog"),
    variant("no-lanelogs", ",oplog=one", "one list of operations"),
    variant("no-strides", ",counter=one", "one counter of free space (ScaleXFS's DP)"),
    variant("no-lane-ids", ",ids=scan", "one bitmap of inode numbers, scanned from its start"),
    variant("no-one-log", ",full=lanes", "each mlog goes on where hardly anything is free"),
    variant("no-paths", ",paths=walk", "no path is remembered"),
    variant("no-trails", ",trails=none", "no memory is asked for before a path is walked"),
    variant("D", ",oplog=one,counter=one", "double list alone: no logs of lanes, no strides"),
    variant("+rps", ",cells=one,mlogs=1,oplog=one,counter=one,ids=scan", "of all these only the semaphore"),
    variant("+rps+cells", ",mlogs=1,oplog=one,counter=one,ids=scan", "the semaphore and groups of cells"),
    variant("none", ",rps=shared,cells=one,mlogs=1,oplog=one,counter=one,ids=scan", "none of them"),
];

// The figure holds the others against the first.
const _: () = assert!(VARIANTS[0].spec.is_empty(), "the first variant is LaneFS as usual");

/// The techniques that are off in a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Off {
    techniques: Vec<&'static str>,
    /// The length of the strides of the counter of free space, in blocks, if not the usual one.
    stride: Option<i64>,
}

impl Off {
    /// Takes out the technique that `part` names; false if it is about something else.
    pub fn add(&mut self, part: &str) -> Res<bool> {
        let stride = part.strip_prefix("stride=").and_then(|n| n.parse::<u32>().ok());
        let found = KEYS.iter().find(|k| k.key == part);
        if stride.is_none() && found.is_none() {
            return Ok(false);
        }
        if cfg!(feature = "ablation") {
            self.techniques.extend(found.map(|k| k.technique));
            self.stride = stride.map(i64::from).or(self.stride);
            Ok(true)
        } else {
            Err(Failure::new(format!(
                "`{part}`: this program was built without the feature `ablation` \
                 (cargo run --release -p lanefs-bench --features ablation -- ...)"
            )))
        }
    }

    /// Returns their names.
    pub fn names(&self) -> Vec<String> {
        let stride = self.stride.map(|n| format!("stride={n}"));
        self.techniques.iter().map(|name| name.to_string()).chain(stride).collect()
    }

    /// Runs `make`: the volume it makes has them off.
    #[cfg(not(feature = "ablation"))]
    pub fn while_making<R>(&self, make: impl FnOnce() -> R) -> R {
        make()
    }

    /// Runs `make`: the volume it makes has them off.
    #[cfg(feature = "ablation")]
    pub fn while_making<R>(&self, make: impl FnOnce() -> R) -> R {
        use lanefs_sync::ablation::{Technique, with_stride, without};
        let technique = |name: &&str| match *name {
            "rps" => Technique::PassThrough,
            "cells" => Technique::CellGroups,
            "oplog" => Technique::LaneLogs,
            "counter" => Technique::StridedCounter,
            "ids" => Technique::LaneNumbers,
            "one-log" => Technique::OneLog,
            "paths" => Technique::Paths,
            _ => Technique::Trails,
        };
        let techniques: Vec<Technique> = self.techniques.iter().map(technique).collect();
        match self.stride {
            Some(n) => without(&techniques, || with_stride(n, make)),
            None => without(&techniques, make),
        }
    }
}

/// Formats the keys for a message.
pub fn keys() -> String {
    KEYS.iter().map(|k| format!(", {}", k.key)).collect::<String>() + ", stride=N"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::TargetSpec;

    #[test]
    fn every_variant_can_be_had_with_the_feature_and_only_then() {
        for v in VARIANTS {
            let parsed = TargetSpec::parse(&format!("mem:64M{}", v.spec));
            let plain = !KEYS.iter().any(|k| v.spec.contains(k.key));
            assert_eq!(parsed.is_ok(), plain || cfg!(feature = "ablation"), "{}", v.name);
        }
    }
}
