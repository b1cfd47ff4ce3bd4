//! The figures of the papers: the frame, its files, and experiments, small and in memory.

use clap::Parser;
use lanefs_bench::cli::{Args, run};
use lanefs_bench::paper::results::FigureResults;
use std::path::Path;

/// Runs `lanefs-bench paper` with these words; the exit status or the message.
fn paper(words: &[&str]) -> Result<i32, String> {
    let all = ["lanefs-bench", "paper"].iter().chain(words);
    run(Args::try_parse_from(all).map_err(|e| e.to_string())?).map_err(|e| e.message)
}

/// Runs a figure with LaneFS alone, quickly; returns its results.
fn quick(dir: &Path, name: &str, more: &[&str]) -> FigureResults {
    let (json, html) = (dir.join(format!("{name}.json")), dir.join(format!("{name}.html")));
    let loadfile = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/client.txt");
    let mut words = vec![name, "--peers", "lanefs", "--fresh", "--seconds", "0.01", "--repeats", "1"];
    words.extend(["--size", "512M", "--scale", "0.01", "--loadfile", loadfile]);
    words.extend(["--json", json.to_str().unwrap(), "--html", html.to_str().unwrap()]);
    words.extend(["--images", dir.to_str().unwrap()]);
    words.extend(more);
    assert_eq!(paper(&words), Ok(0), "{name}");
    balanced(&std::fs::read_to_string(&html).unwrap());
    assert!(std::fs::read_to_string(html.with_extension("csv")).unwrap().starts_with("panel,series,how,"));
    let results: FigureResults = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!((results.format, results.figure.as_str()), (1, name));
    let pictures = std::fs::read_dir(dir).unwrap().filter_map(Result::ok).map(|e| e.file_name());
    let mine = |n: &std::ffi::OsString| n.to_string_lossy().starts_with(&format!("{name}-"));
    let pictures: Vec<_> = pictures.filter(mine).collect();
    assert_eq!(pictures.len(), results.panels.len(), "{pictures:?}");
    pictures.iter().for_each(|p| balanced(&std::fs::read_to_string(dir.join(p)).unwrap()));
    for point in results.panels.iter().flat_map(|p| &p.series).flat_map(|s| &s.points) {
        assert!(point.y.is_finite() && point.low <= point.high, "{name}: {point:?}");
    }
    results
}

/// Panics unless every element is closed where it has to be, and no text holds a bare `<` or `&`.
fn balanced(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    for piece in text.split('<').skip(1) {
        let (tag, after) = piece.split_once('>').unwrap_or_else(|| panic!("`<{piece}`"));
        assert!(!after.contains("& "), "{after}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        match tag {
            t if t.starts_with('!') || ["meta", "link", "br"].contains(&name) => {}
            t if t.starts_with('/') => assert_eq!(open.pop(), Some(name), "near <{t}>{after}"),
            t if t.ends_with('/') => {}
            _ => open.push(name),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn a_figure_of_curves_is_run_and_drawn() {
    let dir = super::place();
    let r = quick(dir.path(), "max-9", &["--workers", "1,2"]);
    assert_eq!(r.panels.len(), 2);
    let lanefs = &r.panels[1].series[0];
    assert_eq!((lanefs.name.as_str(), lanefs.how.as_str(), lanefs.points.len()), ("lanefs", "in process", 2));
    assert!(lanefs.points.iter().all(|p| p.y > 0.0) && !lanefs.predicted);
    // tmpfs took no part, so the paper's number has none beside it.
    assert!(r.stated.iter().all(|s| s.here.is_none() && !s.here_is.is_empty()), "{:?}", r.stated);
    assert!(r.missing.iter().any(|m| m.what.contains("processors")), "{:?}", r.missing);
    assert!(r.results.iter().all(|c| c.called == "in process"));
}

#[test]
fn what_a_model_predicts_is_marked() {
    let dir = super::place();
    let model = dir.path().join("coherence");
    let text = r#"{"curves": [{"workload": "DWOL", "points": [{"lanes": 1, "speed_up": 1.0}, {"lanes": 1024, "speed_up": 700.0}]}]}"#;
    std::fs::write(&model, text).unwrap();
    let r = quick(dir.path(), "max-6", &["--workers", "1", "--coherence", model.to_str().unwrap()]);
    let [measured, predicted] = &r.panels[0].series[..] else { panic!("{:?}", r.panels[0].series) };
    assert!(predicted.predicted && !measured.predicted);
    let last = predicted.points.last().unwrap();
    // Numbers in JSON are read to the last bit but one.
    assert!(last.x == 1024.0 && (last.y / measured.points[0].y - 700.0).abs() < 1e-6, "{last:?}");
    assert_eq!(r.panels[1].series.len(), 1, "the model has no DWAL here");
}

#[test]
fn calls_within_a_workload_are_told_apart() {
    let dir = super::place();
    let r = quick(dir.path(), "scalexfs-19", &["--workers", "1"]);
    let names: Vec<&str> = r.panels.iter().map(|p| p.name.as_str()).collect();
    for name in ["varmail-ptd-creat", "varmail-ptd-unlink", "varmail-ptd-fsync", "mdtest-creat"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(!names.contains(&"mdtest-fsync"), "mdtest syncs nothing");
    let mean = |name: &str| {
        let panel = r.panels.iter().find(|p| p.name == name).unwrap();
        panel.series[0].points[0].y
    };
    assert!(mean("varmail-ptd-fsync") > 0.0 && mean("varmail-ptd-creat") > 0.0);
}

#[test]
fn waits_are_shares() {
    let dir = super::place();
    for name in ["scalexfs-10", "scalexfs-17"] {
        let r = quick(dir.path(), name, &["--workers", "2"]);
        assert!(!r.panels.is_empty());
        let points = r.panels.iter().flat_map(|p| &p.series).flat_map(|s| &s.points);
        points.for_each(|p| assert!((0.0..=100.0).contains(&p.y), "{name}: {p:?}"));
    }
}

#[test]
fn experiments_draw_what_they_say() {
    let dir = super::place();
    let panels = |name: &str, more: &[&str]| -> Vec<String> {
        quick(dir.path(), name, more).panels.into_iter().map(|p| p.name).collect()
    };
    assert_eq!(panels("fxmark-partition", &["--workers", "1,2"]), ["DWSL", "varmail-private"]);
    assert_eq!(panels("max-8", &[]), ["a", "b-alone", "b-beside", "b"]);
    assert_eq!(panels("scalefs-7", &["--workers", "1"]), ["mailbench-p", "smallfile", "largefile", "dbench"]);
    assert_eq!(panels("scalefs-10", &["--medium", "mem"]), ["mem"]);
    assert_eq!(
        panels("scalefs-11", &["--workers", "1"]),
        ["mailbench-p", "dbench-sync", "largefile", "smallfile"]
    );
    assert!(panels("scalexfs-16", &[]).is_empty());
    let strides = quick(dir.path(), "scalexfs-22", &["--workers", "1"]);
    let with_switches = cfg!(feature = "ablation");
    assert_eq!(strides.panels.is_empty(), !with_switches);
    assert_eq!(strides.missing.iter().any(|m| m.what == "stride lengths"), !with_switches);
}

#[test]
fn conflicts_are_drawn_from_what_the_checker_wrote() {
    let dir = super::place();
    let file = dir.path().join("conflicts");
    let pair = |a: &str, b: &str, tests: u32, lines: u32| {
        format!(
            r#"{{"a":"{a}","b":"{b}","tests":{tests},"conflicting_bytes":0,"conflicting_lines":{lines}}}"#
        )
    };
    let pairs = [pair("open", "open", 6, 0), pair("open", "fsync", 2, 2)].join(",");
    std::fs::write(&file, format!(r#"{{"sample": 2, "pairs": [{pairs}]}}"#)).unwrap();
    let more = ["--conflicts", file.to_str().unwrap()];
    let all = quick(dir.path(), "scalefs-6", &more);
    assert_eq!(all.stated[0].here, Some(75.0));
    assert_eq!(quick(dir.path(), "scalefs-8", &more).stated[0].here, Some(100.0));
}

/// Each workload runs in a process of its own, whose memory the kernel counts.
#[test]
fn memory_is_measured_in_processes() {
    let dir = super::place();
    for (name, series) in [("max-table-5", "static"), ("scalefs-12", "lanefs")] {
        let json = dir.path().join(format!("{name}.json"));
        let done = std::process::Command::new(env!("CARGO_BIN_EXE_lanefs-bench"))
            .args(["paper", name, "--fresh", "--seconds", "0.01", "--repeats", "1", "--size", "256M"])
            .args(["--scale", "0.01", "--workers", "1", "--images"])
            .arg(dir.path())
            .arg("--json")
            .arg(&json)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let r: FigureResults = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let one = r.panels[0].series.iter().find(|s| s.name == series).unwrap();
        assert!(!one.points.is_empty() && one.points.iter().all(|p| p.y > 0.5), "{name}: {one:?}");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().filter_map(Result::ok).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn what_is_no_figure_is_refused_with_a_list() {
    let message = paper(&["max-1"]).unwrap_err();
    assert!(message.contains("max-6") && message.contains("fxmark-all"), "{message}");
    let message = paper(&["max-6", "--peers", "zfs"]).unwrap_err();
    assert!(message.contains("zfs") && message.contains("ext4") && message.contains("no-rps"), "{message}");
    assert!(paper(&["max-6", "--seconds", "0"]).is_err());
    assert_eq!(paper(&["list"]), Ok(0));
}
