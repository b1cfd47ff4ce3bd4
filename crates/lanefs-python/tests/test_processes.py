"""Forks, the end of the interpreter, and kills."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import lanefs
import pytest
from conftest import run

FORKS = """import errno, gc, lanefs, os, sys, threading
v = lanefs.Volume(sys.argv[1])
raw = v.open_raw("raw", os.O_RDWR | os.O_CREAT)
buffered = v.open("buffered", "w"); buffered.write("parent's")
entries = v.scandir("/")
lane = threading.Thread(target=lambda: [v.write_bytes("busy", b"x" * n) for n in range(3000)])
lane.start()
pid = os.fork()
if pid == 0:
    calls = [v.listdir, v.sync, raw.fsync, lambda: raw.read(1), lambda: raw.pwrite(b"x", 0),
             lambda: next(entries), lambda: v.open("new", "w"), lambda: v.as_user(1, 1),
             lambda: lanefs.Volume.in_memory("16M"), lambda: lanefs.format("no", "16M"),
             lambda: v.stat("raw"), lambda: v.unmount(), buffered.flush, lambda: raw.flock(2)]
    answers = []
    for call in calls:
        try: call(); answers.append(None)
        except OSError as e: answers.append(e.errno)
    ok = answers == [errno.EIO] * len(calls) and not os.path.exists("no")
    if not ok: print(answers, file=sys.stderr)
    raw.close(); entries.close(); repr(raw); repr(v); raw.closed
    if sys.argv[2] == "leave": os._exit(0 if ok else 1)
    del v, raw, entries; gc.collect()
    sys.exit(0 if ok else 1)
status = os.waitpid(pid, 0)[1]
lane.join()
raw.write(b"still here"); buffered.close(); v.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("end", ["leave", "exit"])
def test_a_child_of_a_fork_is_refused(image: Path, end: str) -> None:
    run(FORKS, image, end)
    with lanefs.Volume(image) as volume:
        assert volume.read_bytes("raw") == b"still here"
        assert volume.read_bytes("buffered") == b"parent's"
        assert sorted(volume.listdir()) == ["buffered", "busy", "raw"]


def child(path: str) -> object:
    """Runs in a process of multiprocessing."""
    try:
        return len(lanefs.Volume(path).listdir())
    except OSError as e:
        return e.errno


def test_multiprocessing(image: Path) -> None:
    """A process that was spawned has nothing of its parent's, one that was forked is told so."""
    with lanefs.Volume(image) as volume:
        volume.mkdir("d")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(child, (str(image),)) == errno.EBUSY
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(child, (str(image),)) == errno.EIO
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(child, (str(image),)) == 1


ENDS = {
    "the end of the program": ("pass", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise RuntimeError", 1),
    "a cycle": ("a = [v, f, g, h]; a.append(a); del a", 0),
    "what nobody frees": ("import builtins; builtins.kept = (v, f, g, h)", 0),
    "a daemon": (
        "import threading, time\n"
        "def forever():\n while True: v.write_bytes('daemon', b'x' * 5000)\n"
        "threading.Thread(target=forever, daemon=True).start(); time.sleep(0.05)",
        0,
    ),
    "after others": ("import atexit; atexit.register(lambda: g.write(b' and late'))", 0),
    "in a finalizer": (
        "class Late:\n def __del__(self): self.raw.pwrite(b'raw, late', 0)\n"
        "late = Late(); late.raw = h",
        0,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_was_written_is_there_after_the_end(image: Path, end: str) -> None:
    last, status = ENDS[end]
    code = f"""import lanefs, os, sys
v = lanefs.Volume(sys.argv[1])
f = v.open("text", "w"); f.write("text")
g = v.open("bytes", "wb"); g.write(b"bytes")
h = v.open("raw", "wb", 0); h.write(b"raw")
{last}
"""
    done = run(code, image, expect=status)
    if status == 0:
        assert done.stderr == ""
    with lanefs.Volume(image) as volume:
        assert volume.read_bytes("text") == b"text"
        assert volume.read_bytes("bytes") == b"bytes" + (b" and late" if end == "after others" else b"")
        assert volume.read_bytes("raw") == (b"raw, late" if end == "in a finalizer" else b"raw")


WRITER = """import lanefs, os, sys
v = lanefs.Volume(sys.argv[1])
seed, n = int(sys.argv[2]), 0
log = v.open("log", "ab")
while True:
    n += 1
    name = f"{seed}-{n}"
    if n % 3 == 0:  # replaced by a rename
        with v.open("new", "wb") as f:
            f.write(name.encode() * 300); lanefs.fsync(f)
        v.replace("new", f"d{n % 7}"); v.open_raw("/", os.O_DIRECTORY).fsync()
        print("replaced", n % 7, name, flush=True)
    elif n % 3 == 1:  # made
        with v.open(name, "w") as f:
            f.write(name * 100); lanefs.fsync(f)
        print("made", name, flush=True)
    else:  # appended
        log.write(f"{name:>20}".encode()); lanefs.fdatasync(log)
        print("appended", name, flush=True)
    if n % 5 == 0 and n > 5:
        gone = f"{seed}-{n - 4}" if (n - 4) % 3 == 1 else None
        if gone: print("removing", gone, flush=True); v.remove(gone)
"""


def test_what_fsync_acknowledged_survives_a_kill(image: Path) -> None:
    """A process that writes is killed at any moment: all that it acknowledged is there, and what it
    was doing is there whole or not at all. LANEFS_KILLS=100 for more of them."""
    rounds = int(os.environ.get("LANEFS_KILLS", "6"))
    chance = random.Random(os.getpid())
    names: set[str] = set()
    removing: set[str] = set()
    replaced: dict[str, str] = {}
    appended: list[str] = []
    for seed in range(rounds):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, image, str(seed)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        told = [writer.stdout.readline() for _ in range(chance.randrange(1, 40))]
        time.sleep(chance.randrange(3000) / 1e6)
        writer.send_signal(signal.SIGKILL)
        told += writer.stdout.readlines()
        assert writer.wait() == -signal.SIGKILL
        for line in told:
            if not line.endswith("\n"):
                continue  # cut off by the kill
            what, *words = line.split()
            if what == "made":
                names.add(words[0])
            elif what == "removing":
                removing.add(words[0])
            elif what == "replaced":
                replaced[words[0]] = words[1]
            else:
                appended.append(words[0])
        with lanefs.Volume(image) as volume:
            found = set(volume.listdir())
            assert names - removing <= found, f"round {seed}: {names - removing - found}"
            for name in names & found:
                assert volume.open(name).read() == name * 100
            for number, name in list(replaced.items()):
                content = volume.read_bytes(f"d{number}")
                assert len(content) % 300 == 0 and content == content[: len(content) // 300] * 300
                # The one that it told, or one that it made afterwards.
                then = content[: len(content) // 300].decode()
                assert order(then) >= order(name), f"round {seed}: {then}, told {name}"
                replaced[number] = then
            log = volume.read_bytes("log")
            entries = [log[i : i + 20].decode().strip() for i in range(0, len(log), 20)]
            assert entries[: len(appended)] == appended, f"round {seed}"
            assert len(entries) <= len(appended) + 1, f"round {seed}"
            appended = entries
    assert appended and names and replaced


def order(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split("-")))
