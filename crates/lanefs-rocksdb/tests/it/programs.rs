//! The stock db_bench, ldb and sst_dump, with the library preloaded.

use crate::built::{here, library, run, stock, text};
use std::path::Path;
use std::process::Command;

/// Has db_bench run benchmarks on the database `/db` of disk.lane; returns what it says of each.
fn bench(dir: &Path, benchmarks: &str, options: &[&str]) -> String {
    let mut bench = stock("db_bench", dir);
    bench.args(["--fs_uri=lanefs://disk.lane?size=256M&cache_size=64M", "--db=/db", "--num=5000"]);
    bench.args(["--compression_type=none", "--write_buffer_size=262144"]);
    let out = run(bench.arg(format!("--benchmarks={benchmarks}")).args(options));
    let told = text(&out);
    for name in benchmarks.split(',') {
        assert!(told.contains(&format!("{name} ")), "{name}: {told}");
    }
    assert!(!told.to_lowercase().contains("error"), "{told}");
    told
}

#[test]
fn db_bench_writes_and_reads_in_every_way() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    bench(dir, "fillsync", &["--num=100", "--threads=2"]);
    bench(dir, "fillseq,overwrite,compact,verifychecksum", &["--threads=2"]);
    let old = &["--use_existing_db=true"][..];
    let with = |options: &[&'static str]| [old, options].concat();
    for (benchmarks, options) in [
        ("readrandom,readseq,readwhilewriting,seekrandom,verifychecksum", with(&["--threads=2"])),
        ("multireadrandom,seekrandom", with(&["--multiread_batched", "--async_io=true"])),
        ("readseq,readreverse", with(&["--readahead_size=65536"])),
        ("overwrite,readrandom,compact,verifychecksum", with(&["--use_direct_reads", "--cache_size=65536"])),
        (
            "overwrite,compact,readrandom,verifychecksum",
            with(&["--use_direct_io_for_flush_and_compaction", "--max_background_jobs=2"]),
        ),
    ] {
        bench(dir, benchmarks, &options);
    }
    let found = bench(dir, "fillseq,readrandom", &[]);
    assert!(found.contains("(5000 of 5000 found)"), "{found}");
    // All of it is in the volume.
    let names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["disk.lane"]);
    let volume = lanefs::Volume::open(&[dir.join("disk.lane")], &Default::default()).unwrap();
    let log = volume.fs().read("/db/LOG").unwrap();
    assert!(String::from_utf8_lossy(&log).contains("RocksDB version"));
    volume.close().unwrap();
}

#[test]
fn the_tools_read_what_db_bench_has_written() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    bench(dir, "fillseq,flush", &[]);
    let tool = |program: &str, arguments: &[&str]| {
        let mut tool = stock(program, dir);
        text(&run(tool.arg("--fs_uri=lanefs://disk.lane").args(arguments)))
    };
    tool("ldb", &["--db=/db", "put", "key", "value"]);
    assert_eq!(tool("ldb", &["--db=/db", "get", "key"]), "value\n");
    assert!(tool("ldb", &["--db=/db", "checkconsistency"]).contains("OK"));
    let said = tool("sst_dump", &["--file=/db", "--command=verify", "--verify_checksum"]);
    assert!(said.contains("The file is ok"), "{said}");
    let backup = ["--backup_fs_uri=lanefs://disk.lane", "--backup_dir=/backup"];
    tool("ldb", &["--db=/db", "backup", backup[0], backup[1]]);
    tool("ldb", &["--db=/copy", "restore", backup[0], backup[1]]);
    assert_eq!(tool("ldb", &["--db=/copy", "get", "key"]), "value\n");
    tool("ldb", &["--db=/copy", "checkpoint", "--checkpoint_dir=/links"]);
    assert_eq!(tool("ldb", &["--db=/links", "get", "key"]), "value\n");
    let names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["disk.lane"], "nothing went to the host");
}

/// The lines of docs/ROCKSDB.md, but for what installs.
#[test]
fn the_commands_in_the_documentation_run() {
    let page = std::fs::read_to_string(here().join("../../docs/ROCKSDB.md")).unwrap();
    let script = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let script = script.replace("/usr/local/lib/librocksdb_lanefs.so", library().to_str().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut sh = Command::new("sh");
    let said = text(&run(sh.args(["-e", "-c", &script]).current_dir(dir.path())));
    assert!(said.contains("fillseq ") && said.contains("readrandom "), "{said}");

    let program = page.split("```cpp\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let source = dir.path().join("page.cc");
    std::fs::write(&source, program).unwrap();
    let lib = library().parent().unwrap().to_path_buf();
    let mut cxx = Command::new("c++");
    cxx.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I"]).arg(lib.join("../include")).arg(&source);
    cxx.arg("-L").arg(&lib).args(["-lrocksdb_lanefs", "-lrocksdb"]);
    run(cxx.arg(format!("-Wl,-rpath,{}", lib.display())).arg("-o").arg(dir.path().join("page")));
    for _ in 0..2 {
        let said = run(Command::new(dir.path().join("page")).current_dir(dir.path()));
        assert_eq!(text(&said), "kept\n");
    }
}
