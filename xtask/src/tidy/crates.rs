//! Dependencies between crates: who may depend on whom. Dev-dependencies may point anywhere: tests
//! see everything.

use super::Report;

/// A crate and what it may depend on. The bench and the laboratory (`lab/`) see everything;
/// nothing that ships in the library sees them.
const ALLOWED: &[(&str, &[&str])] = &[
    ("lanefs-sync", &[]),
    ("lanefs-format", &[]),
    ("lanefs-store", &["lanefs-sync", "lanefs-format"]),
    ("lanefs", &["lanefs-sync", "lanefs-format", "lanefs-store"]),
    ("lanefs-fuse", &["lanefs-sync", "lanefs"]),
    ("lanefs-virtiofs", &["lanefs-sync", "lanefs", "lanefs-fuse"]),
    ("lanefs-preload", &["lanefs", "lanefs-fuse"]),
    ("lanefs-c", &["lanefs-sync", "lanefs", "lanefs-fuse"]),
    ("lanefs-sqlite", &["lanefs", "lanefs-fuse"]),
    ("lanefs-object-store", &["lanefs"]),
    ("lanefs-python", &["lanefs-sync", "lanefs", "lanefs-fuse"]),
    // C++ over the library for C, whose archive is linked when it is built.
    ("lanefs-rocksdb", &[]),
    ("lanefs-bench", &["lanefs-sync", "lanefs-store", "lanefs"]),
    (
        "lanefs-cli",
        &["lanefs-format", "lanefs-store", "lanefs", "lanefs-fuse", "lanefs-virtiofs", "lanefs-bench"],
    ),
    // A copy of the product depends on it, so it depends on nothing.
    ("lanefs-lab-faults", &[]),
    ("lanefs-lab-model", &["lanefs-sync", "lanefs"]),
    (
        "lanefs-lab-crash",
        &[
            "lanefs-sync",
            "lanefs-format",
            "lanefs-store",
            "lanefs",
            "lanefs-fuse",
            "lanefs-lab-faults",
            "lanefs-lab-model",
        ],
    ),
    ("lanefs-lab-conflicts", &["lanefs-store", "lanefs", "lanefs-bench", "lanefs-lab-model"]),
    // The generator of random numbers, and the faults.
    ("xtask", &["lanefs-sync", "lanefs-lab-faults"]),
];

/// Checks a manifest.
pub fn check(name: &str, text: &str, report: &mut Report<'_>) {
    let Some(folder) = name.strip_suffix("/Cargo.toml") else {
        return; // the workspace's own
    };
    let package = match folder.strip_prefix("lab/") {
        Some(room) => format!("lanefs-lab-{room}"),
        None => folder.rsplit('/').next().unwrap_or(folder).to_string(),
    };
    let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == package) else {
        report.file(format!("say in xtask/src/tidy/crates.rs what `{package}` may depend on"));
        return;
    };
    for (line, dependency) in dependencies(text) {
        let ours = ALLOWED.iter().any(|(known, _)| *known == dependency);
        if ours && !allowed.contains(&dependency.as_str()) {
            report.line(
                line,
                format!("`{package}` may not depend on `{dependency}`: dependencies point down only"),
            );
        }
    }
}

/// The packages named by a manifest's normal and build dependencies, with their lines.
fn dependencies(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_matches(['[', ']']);
            let is_list = |name: &str| section == name || section.ends_with(&format!(".{name}"));
            inside = is_list("dependencies") || is_list("build-dependencies");
            // `[dependencies.name]`
            let single = section.rsplit_once('.').filter(|(list, _)| {
                ["dependencies", "build-dependencies"]
                    .iter()
                    .any(|name| list.split('.').next_back() == Some(name))
            });
            if let Some((_, name)) = single {
                found.push((number, name.trim_matches('"').to_string()));
            }
        } else if inside && let Some((key, value)) = line.split_once('=') {
            // `alias = { package = "name" }` counts as `name`.
            let renamed = value.split_once("package").and_then(|(_, rest)| rest.split('"').nth(1));
            let key = key.trim().split('.').next().unwrap_or("").trim_matches('"');
            found.push((number, renamed.unwrap_or(key).to_string()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::tidy::{Finding, check_file};

    fn check(package: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        check_file(&format!("crates/{package}/Cargo.toml"), text, &mut findings);
        findings
    }

    #[test]
    fn dependencies_point_down() {
        assert_eq!(check("lanefs", "[dependencies]\nlanefs-store.workspace = true\nlibc = \"0.2\"\n"), []);
        for upward in [
            "[dependencies]\nlanefs.workspace = true\n",
            "[dependencies]\nlanefs = { path = \"../lanefs\" }\n",
            "[dependencies]\nother = { package = \"lanefs\", path = \"x\" }\n",
            "[build-dependencies]\nlanefs = \"1\"\n",
            "[target.'cfg(unix)'.dependencies]\nlanefs.workspace = true\n",
            "[dependencies.lanefs]\nworkspace = true\n",
        ] {
            assert_eq!(check("lanefs-store", upward).len(), 1, "{upward}");
        }
        assert_eq!(check("lanefs-store", "[dev-dependencies]\nlanefs.workspace = true\n"), []);
        assert_eq!(check("lanefs-store", "[dependencies]\n# lanefs = \"1\"\n"), []);
        assert_eq!(check("lanefs-fuse", "[dependencies]\nlanefs-store.workspace = true\n").len(), 1);
        assert_eq!(check("lanefs-new", "").len(), 1, "a new crate must be given its place");
    }
}
