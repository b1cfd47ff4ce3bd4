//! `lanefs stat`, `lanefs top` and the socket for metrics: what they show agrees with what was
//! done, and whoever connects to the socket hurts nobody.

use crate::common::*;
use crate::transport::can_mount;
use prometheus_parse::{Scrape, Value};
use serde_json::Value as Json;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

on_each_transport! {
    the_figures_agree_with_what_was_done,
    requests_are_timed_while_somebody_asks,
}

fn stat(m: &Mount) -> Json {
    lanefs_in(m.work.path(), &["stat", "--json", "mnt"]).ok().json()
}

/// A figure by its path, such as `volume.space.inodes`.
#[track_caller]
fn at(json: &Json, path: &str) -> u64 {
    let found = path.split('.').fold(json, |j, name| &j[name]);
    found.as_u64().unwrap_or_else(|| panic!("{path} is {found}"))
}

/// A figure of the requests of a kind; 0 if none came.
fn of_kind(json: &Json, kind: &str, figure: &str) -> u64 {
    let all = json["mount"]["requests"].as_array().expect("a list");
    all.iter().find(|r| r["kind"] == kind).map_or(0, |r| r[figure].as_u64().expect("a number"))
}

fn the_figures_agree_with_what_was_done() {
    let m = Mount::new(&[]);
    let before = stat(&m);
    for n in 0..1000 {
        std::fs::File::create(m.path(&format!("f{n}"))).unwrap();
    }
    let file = std::fs::File::create(m.path("synced")).unwrap();
    for n in 0..10 {
        file.write_all_at(&[n; 8192], u64::from(n) * 8192).unwrap();
        file.sync_all().unwrap();
    }
    drop(file);
    let after = stat(&m);
    let more = |kind, figure| of_kind(&after, kind, figure) - of_kind(&before, kind, figure);
    let grown = |path| at(&after, path) - at(&before, path);
    // Where the kernel opens files without a request it asks once whether it may create any.
    let made = more("create", "count").max(more("mknod", "count"));
    assert_eq!(made, 1001, "{after:#}");
    assert_eq!((more("fsync", "count"), more("write", "count")), (10, 10));
    // A write has 40 bytes in front of what is written.
    assert_eq!(more("write", "received_bytes"), 10 * (8192 + 40));
    assert_eq!(grown("volume.written.data_bytes"), 10 * 8192);
    assert!(grown("volume.written.log_bytes") >= 10 * 4096 && grown("volume.epochs.commits") > 0);
    assert_eq!(grown("volume.devices.flushes_asked"), grown("volume.devices.flushes_issued"));
    assert!((10..30).contains(&grown("volume.devices.flushes_asked")), "{after:#}");
    assert_eq!(grown("volume.inodes.in_memory"), 1001);
    let space = &after["volume"]["space"];
    let df = &lanefs_in(m.work.path(), &["df", "--json", "mnt"]).ok().json()[0];
    assert_eq!(space["total_bytes"], df["size"]);
    // What a read moves is counted too. Past the kernel's cache: it need not drop pages when asked.
    std::fs::write(m.path("large"), vec![7; 1 << 20]).unwrap();
    std::fs::File::open(m.path("large")).unwrap().sync_all().unwrap();
    let before = of_kind(&stat(&m), "read", "answered_bytes");
    let direct =
        std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(m.path("large")).unwrap();
    let mut block = Box::new(Aligned([0; 1 << 20]));
    direct.read_exact_at(&mut block.0, 0).unwrap();
    assert!(block.0.iter().all(|b| *b == 7));
    assert_eq!(of_kind(&stat(&m), "read", "answered_bytes") - before, 1 << 20);
    drop(direct);
    let text = lanefs_in(m.work.path(), &["stat", "mnt"]).ok().out;
    for word in ["mounted at", "segments", "amplification", "fsync", "1002"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    // By the name of the image the mount is asked, too.
    let by_image = lanefs_in(m.work.path(), &["stat", "--json", "v.lane"]).ok().json();
    assert!(of_kind(&by_image, "write", "count") > 10 && by_image["recovery"].is_null());
}

fn requests_are_timed_while_somebody_asks() {
    let m = Mount::new(&[]);
    std::fs::write(m.path("f"), "x").unwrap();
    let untimed = stat(&m);
    assert_eq!(untimed["mount"]["is_timed"], false);
    let requests = untimed["mount"]["requests"].as_array().unwrap();
    assert!(!requests.is_empty() && requests.iter().all(|r| r["latency"].is_null()), "{untimed:#}");
    let mut ask = Command::new(LANEFS);
    ask.args(["stat", "--json", "--latency", "2", "mnt"]).current_dir(m.work.path()).stdout(Stdio::piped());
    let mut ask = ask.spawn().unwrap();
    let mut n = 0;
    while ask.try_wait().unwrap().is_none() {
        let dir = m.path(&format!("d{n}"));
        std::fs::create_dir(&dir).unwrap();
        // A fast machine would fill the volume.
        std::fs::remove_dir(&dir).unwrap();
        n += 1;
    }
    let mut out = String::new();
    ask.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    let timed: Json = serde_json::from_str(&out).unwrap();
    let requests = timed["mount"]["requests"].as_array().unwrap();
    let made = requests.iter().find(|r| r["kind"] == "mkdir").expect("some came");
    let l = &made["latency"];
    // One may have been under way when the clock was switched on.
    assert!((0..=1).contains(&(at(made, "count") - at(l, "count"))), "{made:#}");
    assert!(at(l, "count") > 0 && at(l, "p50_ns") <= at(l, "p99_ns") && at(l, "p99_ns") <= at(l, "max_ns"));
    assert!(at(l, "sum_ns") / at(l, "count") <= at(l, "max_ns"), "{made:#}");
    let buckets = l["buckets"].as_array().unwrap();
    assert_eq!(buckets.iter().map(|b| b[1].as_u64().unwrap()).sum::<u64>(), at(l, "count"));
}

/// An ordinary user who may enter sees the figures, as with `df`, and has nothing timed.
#[test]
fn who_may_enter_may_look() {
    if !can_mount() {
        return;
    }
    let m = Mount::new(&[]);
    let copy = Path::new("/tmp").join(format!("lanefs-stat-{}", std::process::id()));
    std::fs::copy(LANEFS, &copy).unwrap();
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
    let run = |args: &[&str]| {
        let mut call = Command::new("setpriv");
        call.args(["--reuid=1000", "--regid=1000", "--clear-groups"])
            .arg(&copy)
            .args(args)
            .current_dir(&m.dir);
        run_command(&mut call)
    };
    let (df, stat) = (run(&["df", "."]), run(&["stat", "--json", "."]));
    let (timed, top) = (run(&["stat", "--latency", "1", "."]), run(&["top", "--once", "."]));
    std::fs::remove_file(&copy).unwrap();
    assert_eq!((df.code, stat.code, top.code), (0, 0, 0), "{df:?} {stat:?} {top:?}");
    assert!(stat.json()["volume"]["segments"]["total"].as_u64() > Some(0));
    timed.fails(1, &["only root, or who mounted it"]);
    assert!(!top.out.contains(" us "), "somebody's requests were timed: {}", top.out);
}

/// An image that was not closed is told as it would be recovered, and is not touched.
#[test]
fn an_image_that_is_not_mounted_is_only_read() {
    let (dir, image) = volume("64M");
    let fresh = lanefs_in(dir.path(), &["stat", "--json", "v.lane"]).ok().json();
    assert_eq!(
        (&fresh["mounted"], &fresh["mount"], &fresh["recovery"]["clean"]),
        (&Json::Null, &Json::Null, &true.into())
    );
    let total = at(&fresh, "volume.segments.total");
    let states = ["free", "pending", "open", "chain"].map(|s| at(&fresh, &format!("volume.segments.{s}")));
    let full: u64 = fresh["volume"]["segments"]["by_utilisation"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_u64().unwrap())
        .sum();
    assert_eq!(states.iter().sum::<u64>() + full, total, "{fresh:#}");
    std::fs::write(dir.path().join("data"), vec![3; 20 << 20]).unwrap();
    lanefs_in(dir.path(), &["cp", "data", "v.lane:/data"]).ok();
    let filled = lanefs_in(dir.path(), &["stat", "--json", "v.lane"]).ok().json();
    assert!(at(&filled, "volume.space.live_bytes") - at(&fresh, "volume.space.live_bytes") >= 20 << 20);
    assert!(filled["volume"]["segments"]["by_utilisation"][9].as_u64() >= Some(8), "{filled:#}");
    let text = lanefs_in(dir.path(), &["stat", "v.lane"]).ok().out;
    assert!(text.contains("closed") && !text.contains("request"), "{text}");
    lanefs_in(dir.path(), &["top", "--once", "v.lane"]).fails(1, &["not mounted", "lanefs stat"]);
    lanefs_in(dir.path(), &["stat", "--latency", "1", "v.lane"]).fails(1, &["not mounted"]);
    lanefs_in(dir.path(), &["stat", "nothing.lane"]).fails(1, &["nothing.lane"]);
    lanefs_in(dir.path(), &["stat", "."]).fails(1, &["no directory of a mounted"]);
    if !can_mount() {
        return;
    }
    // As after a crash: what an fsync left is in the log.
    let m = Mount::new(&[]);
    std::fs::write(m.path("f"), vec![1; 9000]).unwrap();
    std::fs::File::open(m.path("f")).unwrap().sync_all().unwrap();
    std::fs::copy(m.image(), &image).unwrap();
    let before = std::fs::read(&image).unwrap();
    let crashed = lanefs_in(dir.path(), &["stat", "--json", "v.lane"]).ok().json();
    assert_eq!(crashed["recovery"]["clean"], false, "{crashed:#}");
    assert!(at(&crashed, "recovery.batches") > 0 && at(&crashed, "recovery.groups") > 0);
    assert!(std::fs::read(&image).unwrap() == before, "the image was changed");
}

fn scrape(text: &str) -> Scrape {
    Scrape::parse(text.lines().map(|l| Ok(l.to_string()))).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The value of a counter or gauge with this label, if it has one.
#[track_caller]
fn sample(s: &Scrape, name: &str, label: &str) -> f64 {
    let has = |x: &&prometheus_parse::Sample| {
        x.metric == name && (label.is_empty() || x.labels.values().any(|v| v == label))
    };
    match s.samples.iter().find(has).map(|x| &x.value) {
        Some(Value::Counter(v) | Value::Gauge(v)) => *v,
        other => panic!("{name} {label} is {other:?}"),
    }
}

#[test]
fn prometheus_reads_what_is_told() {
    if !can_mount() {
        return;
    }
    let m = Mount::new(&[]);
    (0..100).for_each(|n| drop(std::fs::File::create(m.path(&format!("f{n}"))).unwrap()));
    let work = m.work.path();
    let s = scrape(&lanefs_in(work, &["stat", "--prometheus", "mnt"]).ok().out);
    assert_eq!(sample(&s, "lanefs_requests_total", "create"), 100.0);
    let json = stat(&m);
    let is =
        |name: &str, label: &str, path: &str| assert_eq!(sample(&s, name, label), at(&json, path) as f64);
    is("lanefs_space_bytes", "total", "volume.space.total_bytes");
    is("lanefs_written_bytes_total", "data", "volume.written.data_bytes");
    is("lanefs_segments_low_water", "", "volume.segments.low_water");
    is("lanefs_segments_checkpoint_below", "", "volume.segments.checkpoint_below");
    assert!(at(&json, "volume.segments.checkpoint_below") >= at(&json, "volume.segments.low_water"));
    assert!(s.samples.iter().all(|x| x.metric != "lanefs_request_seconds"), "nobody asked");
    let full = s.samples.iter().filter(|x| x.metric == "lanefs_segments_full").count();
    assert_eq!(full, 10);
    let timed = std::thread::scope(|s| {
        let ask = s.spawn(|| lanefs_in(work, &["stat", "--prometheus", "--latency", "2", "mnt"]).ok().out);
        let mut n = 0;
        while !ask.is_finished() {
            let dir = m.path(&format!("d{n}"));
            std::fs::create_dir(&dir).unwrap();
            // A fast machine would fill the volume.
            std::fs::remove_dir(&dir).unwrap();
            n += 1;
        }
        ask.join().unwrap()
    });
    let s = scrape(&timed);
    let timed = s.samples.iter().find(|x| x.metric == "lanefs_request_seconds").expect("a histogram");
    let Value::Histogram(buckets) = &timed.value else { panic!("{timed:?}") };
    assert_eq!(buckets.len(), 28);
    assert!(buckets.is_sorted_by(|a, b| a.less_than < b.less_than && a.count <= b.count), "{buckets:?}");
    assert!(buckets[27].less_than.is_infinite() && buckets[27].count > 0.0, "{buckets:?}");
}

#[test]
fn top_draws_into_a_pipe_and_leaves_a_terminal_as_it_was() {
    if !can_mount() {
        return;
    }
    let m = Mount::new(&[]);
    let work = m.work.path();
    std::fs::write(m.path("f"), "x").unwrap();
    let run = lanefs_in(work, &["top", "--count", "2", "mnt"]).ok();
    assert_eq!(run.out.matches("amplification").count(), 2, "{}", run.out);
    assert!(!run.out.contains('\x1b') && run.out.contains("per second"), "{}", run.out);
    assert_eq!(lanefs_in(work, &["top", "--once", "v.lane"]).ok().out.matches("amplification").count(), 1);
    lanefs_in(work, &["top", "."]).fails(1, &["no directory of a mounted"]);
    // In a terminal: by a key, by Ctrl-C, and when the mount goes.
    for how in ["q", "\x03", "umount"] {
        let shell = format!("stty -g; {LANEFS} top mnt; echo; stty -g");
        let mut script = Command::new("script");
        script.args(["-q", "-e", "-c", &shell, "/dev/null"]).current_dir(work).stdin(Stdio::piped());
        let mut script = script.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("script");
        let (mut keys, mut screen) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
        let (mut shown, mut some) = (Vec::new(), [0; 4096]);
        let has = |shown: &[u8], what: &[u8]| shown.windows(what.len()).any(|w| w == what);
        while !has(&shown, b"per second") {
            let n = screen.read(&mut some).unwrap();
            assert!(n > 0, "it ended: {}", String::from_utf8_lossy(&shown));
            shown.extend(&some[..n]);
        }
        match how {
            "umount" => drop(lanefs_in(work, &["umount", "--lazy", "mnt"])),
            key => keys.write_all(key.as_bytes()).unwrap(),
        }
        screen.read_to_end(&mut shown).unwrap();
        assert!(script.wait().unwrap().success());
        let shown = String::from_utf8_lossy(&shown).replace('\r', "");
        let (enter, leave) = (shown.find("\x1b[?1049h"), shown.rfind("\x1b[?25h\x1b[?1049l"));
        assert!(enter < leave && enter.is_some(), "{how:?}: {shown:?}");
        let lines: Vec<&str> = shown.trim().lines().collect();
        assert_eq!(lines.first(), lines.last(), "{how:?}: the terminal is not as it was");
    }
}

/// The answer to a request of HTTP: the status, and what follows the head.
fn get(socket: &Path, target: &str) -> std::io::Result<(String, String)> {
    let mut peer = UnixStream::connect(socket)?;
    peer.set_read_timeout(Some(Duration::from_secs(20)))?;
    peer.write_all(format!("GET {target} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    peer.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let length = format!("Content-Length: {}\r\n", body.len());
    assert!(head.contains(&length), "{head}");
    Ok((head.split(' ').nth(1).unwrap_or_default().into(), body.into()))
}

#[test]
fn figures_are_told_on_a_socket_and_no_peer_hurts() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("metrics");
    let option = format!("metrics={}", socket.display());
    let mut m = Mount::new(&["-o", &option]);
    let meta = std::fs::symlink_metadata(&socket).unwrap();
    assert!(meta.file_type().is_socket() && meta.permissions().mode() & 0o777 == 0o600, "{meta:?}");
    std::fs::write(m.path("f"), "x").unwrap();
    let (status, text) = get(&socket, "/metrics").unwrap();
    assert_eq!(status, "200");
    assert_eq!(sample(&scrape(&text), "lanefs_requests_total", "create"), 1.0);
    assert_eq!(get(&socket, "/else").unwrap().0, "404");
    // Timed from then on.
    get(&socket, "/metrics?latency=60").unwrap();
    std::fs::write(m.path("g"), "x").unwrap();
    assert!(get(&socket, "/").unwrap().1.contains("lanefs_request_seconds_count{kind=\"create\"} 1\n"));
    // Some who send nothing, one who sends a megabyte, one who takes no answer, some who go at
    // once.
    let silent: Vec<_> = (0..20).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    (0..50).for_each(|_| drop(UnixStream::connect(&socket)));
    let mut loud = UnixStream::connect(&socket).unwrap();
    let _ = loud.write_all(&vec![b'x'; 1 << 20]);
    let mut deaf = UnixStream::connect(&socket).unwrap();
    let _ = deaf.write_all(b"GET / HTTP/1.0\r\n\r\n");
    std::fs::write(m.path("h"), "the mount goes on").unwrap();
    let begun = Instant::now();
    let status = loop {
        match get(&socket, "/metrics") {
            Ok((status, _)) => break status,
            Err(e) => assert!(begun.elapsed() < Duration::from_secs(60), "nobody is answered: {e}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(status, "200");
    drop((silent, loud, deaf));
    let work = m.work.path().to_path_buf();
    // Another mount does not take it over, nor what is no socket.
    std::fs::create_dir(work.join("other")).unwrap();
    lanefs_in(&work, &["mount", "--create", "--size", "32M", "-o", &option, "o.lane", "other"])
        .fails(1, &["metrics=", "another process listens"]);
    lanefs_in(&work, &["mount", "-o", "metrics=v.lane", "o.lane", "other"]).fails(1, &["is no socket"]);
    assert_eq!(mount_line(&work.join("other")), None);
    m.umount();
    assert!(!socket.exists(), "it is left behind");
    // One that a killed server has left is replaced.
    m.mount(&["-o", &option]);
    let server = rustix::process::Pid::from_raw(m.server_of_mount() as i32).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    m.umount();
    assert!(std::fs::symlink_metadata(&socket).is_ok());
    m.mount(&["-o", &option]);
    assert_eq!(get(&socket, "/metrics").unwrap().0, "200");
    m.umount();
    assert!(!socket.exists(), "it is left behind");
}
