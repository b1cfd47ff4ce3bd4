"""What a volume has beyond the calls of os: images, users, views, what is refused."""

from __future__ import annotations

import array
import copy
import errno
import fcntl
import gc
import io
import mmap
import os
import pickle
import shutil
import signal
import struct
import subprocess
import tarfile
import threading
import time
import weakref
import zipfile
from pathlib import Path
from typing import Any

import lanefs
import pytest
from conftest import run


def test_what_was_written_is_found_again(image: Path) -> None:
    with lanefs.Volume(image) as volume:
        volume.makedirs("a/b")
        with volume.open("a/b/c", "w") as file:
            file.write("text")
        volume.setxattr("a/b/c", "user.tag", b"value")
        volume.chmod("a/b/c", 0o600)
        identity = volume.uuid
    assert volume.closed and "[closed]" in repr(volume)
    with lanefs.Volume(os.fsencode(image), read_only=True, noatime=True, commit=1) as volume:
        assert volume.uuid == identity and volume.read_only
        assert volume.open("a/b/c").read() == "text"
        assert volume.getxattr("a/b/c", "user.tag") == b"value"
        assert volume.listxattr("a/b/c") == ["user.tag"]
        assert volume.stat("a/b/c").st_mode == 0o100600
        with pytest.raises(OSError) as refused:
            volume.open("new", "w")
        assert refused.value.errno == errno.EROFS and refused.value.filename == "new"
        assert volume.statvfs().f_flag & os.ST_RDONLY


def test_an_access_acl_is_the_mode(image: Path) -> None:
    """Programs copy a mode as an ACL: the file had one then, and kept its mode."""

    def acl(*entries: tuple[int, int]) -> bytes:
        one = struct.Struct("<HHi")
        return b"\2\0\0\0" + b"".join(one.pack(tag, perm, 1000 if tag == 2 else -1) for tag, perm in entries)

    name = "system.posix_acl_access"
    with lanefs.Volume(image) as volume:
        volume.open("file", "w").close()
        volume.chmod("file", 0o600)
        volume.setxattr("file", name, acl((1, 6), (4, 4), (32, 4)))
        assert volume.stat("file").st_mode == 0o100644 and volume.listxattr("file") == []
        volume.setxattr("file", name, acl((1, 7), (2, 6), (4, 5), (16, 6), (32, 0)))
        assert volume.stat("file").st_mode == 0o100760
        volume.chmod("file", 0o640)
        assert volume.getxattr("file", name) == acl((1, 6), (2, 6), (4, 5), (16, 4), (32, 0))
        with pytest.raises(OSError) as refused:
            volume.setxattr("file", name, b"none")
        assert refused.value.errno == errno.EINVAL


def test_images_and_options(tmp_path: Path) -> None:
    two = [tmp_path / "0", tmp_path / "1"]
    lanefs.format(two, 64 << 20, label="two", metadata_copies=2)
    with lanefs.Volume(reversed(two), order="relaxed", cache_size="32M") as volume:
        assert volume.label == "two" and lanefs.opened(two) is volume
        assert volume.statvfs().f_blocks * 4096 > 90 << 20
    assert lanefs.opened(two) is None
    made = tmp_path / "made"
    for _ in range(2):
        with lanefs.Volume(made, create_size="16M") as volume:
            volume.write_bytes("f", b"")
    for given, named, kind in (
        ((two[0], "64M"), {}, FileExistsError), ((tmp_path / "x", 5), {}, OSError),
        ((tmp_path / "x", "many"), {}, ValueError), ((tmp_path / "x", -4096), {}, ValueError),
        ((tmp_path / "x", 1.5), {}, AttributeError), (([], "64M"), {}, ValueError),
        ((7, "64M"), {}, TypeError), ((tmp_path / "x", "64M"), {"label": 3}, TypeError),
        ((tmp_path / "none" / "x", "64M"), {}, FileNotFoundError),
    ):  # fmt: skip
        with pytest.raises(kind):
            lanefs.format(*given, **named)  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()
    for named, kind in (
        ({"order": "any"}, OSError), ({"commit": "soon"}, ValueError), ({"unknown": 1}, TypeError),
        ({"cache_size": "1X"}, ValueError), ({"cache_size": -1}, ValueError),
    ):  # fmt: skip
        with pytest.raises(kind):
            lanefs.Volume(made, **named)
    with pytest.raises(FileNotFoundError) as missing:
        lanefs.Volume(tmp_path / "missing")
    assert "missing" in str(missing.value)
    # What it says to do is a call of Python's.
    assert "lanefs.format(" in str(missing.value) and "mkfs" not in str(missing.value)
    (tmp_path / "text").write_text("no volume" * 1000)
    with pytest.raises(OSError) as no_volume:
        lanefs.Volume(tmp_path / "text")
    assert no_volume.value.errno == errno.EINVAL


def test_one_process_has_a_volume(image: Path) -> None:
    with lanefs.Volume(image) as volume:
        with pytest.raises(OSError) as busy:
            lanefs.Volume(image)
        assert busy.value.errno == errno.EBUSY
        assert "opened" in busy.value.__notes__[0] and lanefs.opened(image) is volume
        code = """import lanefs, sys
try: lanefs.Volume(sys.argv[1])
except OSError as e: print(e.errno, e.strerror)"""
        told = run(code, image).stdout
        assert told.startswith(f"{errno.EBUSY} ") and str(os.getpid()) in told


def test_closed_volumes(image: Path) -> None:
    volume = lanefs.Volume(image)
    raw = volume.open_raw("raw", os.O_RDWR | os.O_CREAT)
    text = volume.open("text", "w")
    text.write("kept by close")
    entries = volume.scandir("/")
    user = volume.as_user(1000, 1000)
    volume.close()
    volume.close()
    for call in (volume.listdir, volume.sync, volume.statvfs, user.listdir, volume.__enter__):
        with pytest.raises(ValueError):
            call()
    for call in (lambda: raw.read(1), lambda: raw.write(b"x"), raw.fsync, lambda: raw.pread(1, 0)):
        with pytest.raises(OSError) as closed:
            call()
        assert closed.value.errno == errno.EIO
    assert "closed" in str(closed.value)
    text.write("lost")
    with pytest.raises(OSError):
        text.close()
    with pytest.raises(OSError):
        list(entries)
    raw.close()
    with lanefs.Volume(image) as volume:
        assert volume.open("text").read() == "kept by close"
    # One that is dropped while files are open is closed with the last of them.
    file = lanefs.Volume(image).open("text", "r+")
    gc.collect()
    assert file.read() == "kept by close"
    with pytest.raises(OSError):
        lanefs.Volume(image)
    file.close()
    del file
    gc.collect()
    lanefs.Volume(image).close()


def test_users(volume: lanefs.Volume) -> None:
    volume.mkdir("theirs", 0o777)
    volume.chmod("theirs", 0o777)
    volume.mkdir("secret", 0o700)
    user = volume.as_user(1000, 1001, [1002], umask=0o077)
    with user.open("theirs/f", "w"):
        pass
    found = volume.stat("theirs/f")
    assert (found.st_uid, found.st_gid, found.st_mode) == (1000, 1001, 0o100600)
    with pytest.raises(PermissionError) as refused:
        user.listdir("secret")
    assert refused.value.filename == "secret"
    assert not user.access("secret", os.R_OK) and volume.access("secret", os.R_OK)
    assert not user.exists("secret/x")
    with pytest.raises(PermissionError):
        user.chown("theirs/f", 0, 0)
    user.close()
    with pytest.raises(ValueError):
        user.listdir("/")
    assert volume.listdir("theirs") == ["f"]
    for given in ((-1, 0), (1 << 32, 0), ("root", 0)):
        with pytest.raises((OverflowError, TypeError)):
            volume.as_user(*given)  # type: ignore[arg-type]


def test_umask() -> None:
    before = os.umask(0o027)
    try:
        with lanefs.Volume.in_memory("16M") as volume:
            volume.mkdir("d")
            volume.open("f", "w").close()
            assert volume.umask == 0o027
            assert volume.stat("d").st_mode & 0o777 == 0o750
            assert volume.stat("f").st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


def test_names_of_all_kinds(volume: lanefs.Volume) -> None:
    names = [b"plain", "h\xe4\u20ac\U0001f600".encode(), b"\xff\xfe no text", b"new\nline", b" "]
    for name in names:
        volume.open(name, "w").close()
    assert sorted(volume.listdir(b"/")) == sorted(names)
    texts = volume.listdir("/")
    assert sorted(t.encode("utf-8", "surrogateescape") for t in texts) == sorted(names)
    for text in texts:
        assert volume.stat(text).st_ino == volume.stat("/" + text).st_ino
    volume.symlink(b"\xff", "link")
    assert volume.readlink("link") == "\udcff" and volume.readlink(b"link") == b"\xff"
    with pytest.raises(UnicodeEncodeError):
        volume.stat("\ud800")
    with pytest.raises(FileNotFoundError) as missing:
        volume.stat("\udcfe")
    assert missing.value.filename == "\udcfe"


def test_what_can_be_written_and_filled(volume: lanefs.Volume) -> None:
    file = volume.open_raw("f", os.O_RDWR | os.O_CREAT)
    numbers = array.array("I", [1, 2, 3])
    for given in (b"bytes", bytearray(b"more"), memoryview(b"part")[1:3], numbers, b""):
        file.truncate(0)
        file.seek(0)
        assert file.write(given) == len(memoryview(given).tobytes())
        assert file.pread(100, 0) == memoryview(given).tobytes()
    with mmap.mmap(-1, 4096) as mapped:
        mapped[:3] = b"abc"
        assert file.pwrite(mapped, 0) == 4096
        mapped[:3] = b"\0\0\0"
        assert file.preadv([mapped], 0) == 4096 and mapped[:3] == b"abc"
    for bad in ("text", 3, None, memoryview(b"123456")[::2]):
        with pytest.raises((TypeError, BufferError)):
            file.write(bad)  # type: ignore[arg-type]
    for bad in (b"fixed", "text", memoryview(b"123"), memoryview(bytearray(9))[::2]):
        with pytest.raises((TypeError, BufferError)):
            file.readinto(bad)  # type: ignore[arg-type]
    assert file.readinto(bytearray()) == 0
    # A buffer is released again.
    buffer = bytearray(10)
    file.pwrite(buffer, 0)
    file.preadv([buffer], 0)
    buffer.extend(b"x")
    # What is not there takes no memory.
    assert len(file.pread(1 << 60, 0)) == 4096
    file.seek(4000)
    assert len(file.read(1 << 60)) == 96
    file.truncate(1 << 50)
    with pytest.raises(MemoryError):
        file.pread(1 << 50, 0)


def test_modules_that_take_files(volume: lanefs.Volume) -> None:
    with zipfile.ZipFile(volume.open("z.zip", "w+b"), "w") as archive:
        archive.writestr("a/b", "text")
    with zipfile.ZipFile(volume.open("z.zip", "rb")) as archive:
        assert archive.read("a/b") == b"text" and archive.testzip() is None
    with tarfile.open(fileobj=volume.open("t.tgz", "wb"), mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    with tarfile.open(fileobj=volume.open_raw("t.tgz"), mode="r") as tar:
        assert tar.getnames() == ["empty"]
    with volume.open("t.tgz", "rb") as source, volume.open("copy", "wb") as target:
        shutil.copyfileobj(source, target)
    assert volume.read_bytes("copy") == volume.read_bytes("t.tgz")
    with volume.open("p", "wb") as file:
        pickle.dump({"a": 1}, file)
    with volume.open("p", "rb") as file:
        assert pickle.load(file) == {"a": 1}
    numpy = pytest.importorskip("numpy")
    for mode in ("wb", "w+b"):
        with volume.open("n.npy", mode) as file:
            numpy.save(file, numpy.arange(10_000))
    with volume.open("n.npy", "rb") as file:
        assert numpy.load(file).sum() == 49_995_000
    matrix = numpy.zeros((100, 100), "u1")
    with volume.open_raw("m", os.O_RDWR | os.O_CREAT) as raw:
        assert raw.write(matrix + 1) == 10_000
        assert raw.preadv([matrix[:50], matrix[50:]], 0) == 10_000 and matrix.sum() == 10_000
        with pytest.raises((ValueError, BufferError)):
            raw.write(matrix[:, ::2])
        same = bytearray(5)
        assert raw.preadv([same, same], 0) == 10 and same == b"\x01" * 5
        assert raw.preadv([bytearray(4), bytearray(4), bytearray(4)], 9_995) == 5


def test_a_full_volume(tmp_path: Path) -> None:
    lanefs.format(tmp_path / "small", "4M")
    with lanefs.Volume(tmp_path / "small") as volume:
        with pytest.raises(OSError) as full:
            with volume.open("big", "wb") as file:
                for _ in range(100):
                    file.write(os.urandom(1 << 20))
        assert full.value.errno == errno.ENOSPC
        size = volume.getsize("big")
        assert 0 < size < 4 << 20 and len(volume.read_bytes("big")) == size
        volume.remove("big")
        volume.write_bytes("small", b"fits")
        assert volume.read_bytes("small") == b"fits"


def test_renames_and_copies(volume: lanefs.Volume) -> None:
    volume.write_bytes("a", b"A")
    volume.write_bytes("b", b"B")
    with pytest.raises(FileExistsError) as exists:
        volume.rename("a", "b", flags=1)
    assert (exists.value.filename, exists.value.filename2) == ("a", "b")
    volume.rename("a", "b", flags=2)
    assert (volume.read_bytes("a"), volume.read_bytes("b")) == (b"B", b"A")
    assert volume.copyfile("a", "c") == 1 and volume.read_bytes("c") == b"B"
    with volume.open_raw("a") as source, volume.open("d", "wb", 0) as target:
        assert source.copy_file_range(target, 100, 0, 10) == 1
    assert volume.read_bytes("d") == b"\0" * 10 + b"B"


def test_pickling_and_copying_are_refused(volume: lanefs.Volume) -> None:
    file = volume.open("f", "wb", 0)
    entry = next(iter(volume.scandir("/")))
    for each in (volume, file, entry):
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(each)
        with pytest.raises(TypeError):
            copy.deepcopy(each)
    for kind in (lanefs.File, lanefs.DirEntry, lanefs.ScanDir):
        with pytest.raises(TypeError):
            kind()
    assert repr(file) == "<lanefs.File name='f' mode='wb'>" and repr(entry) == "<lanefs.DirEntry 'f'>"
    file.close()
    assert repr(file) == "<lanefs.File [closed]>"


def test_nothing_is_kept_alive(image: Path) -> None:
    volume = lanefs.Volume(image)
    buffered = volume.open("f", "w")
    buffered.write("x")
    dead = [weakref.ref(volume), weakref.ref(buffered), weakref.ref(buffered.buffer.raw)]
    del volume, buffered
    gc.collect()
    assert [ref() for ref in dead] == [None, None, None]
    with lanefs.Volume(image) as volume:
        assert volume.read_bytes("f") == b"x"


def test_threads_go_on_meanwhile(volume: lanefs.Volume) -> None:
    """A call that waits has released the interpreter: here for a lock that another thread holds."""
    first, second = (volume.open_raw("f", os.O_RDWR | os.O_CREAT) for _ in range(2))
    for take in (lambda f, op: f.flock(op), lambda f, op: f.lockf(op, 10)):
        take(first, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            take(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done = threading.Event()

        def wait(take: Any = take, done: threading.Event = done) -> None:
            take(second, fcntl.LOCK_EX)
            take(second, fcntl.LOCK_UN)
            done.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not done.wait(0.05)
        take(first, fcntl.LOCK_UN)
        assert done.wait(60)
        thread.join()


def test_a_wait_ends_by_ctrl_c(volume: lanefs.Volume) -> None:
    first, second = (volume.open_raw("f", os.O_RDWR | os.O_CREAT) for _ in range(2))
    first.flock(fcntl.LOCK_EX)
    first.lockf(fcntl.LOCK_EX)
    # Shells start what they leave in the background with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for wait in (lambda: second.flock(fcntl.LOCK_EX), lambda: second.lockf(fcntl.LOCK_EX)):
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                wait()
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    first.close()
    second.flock(fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_many_threads(volume: lanefs.Volume) -> None:
    shared = volume.open_raw("shared", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    failed: list[BaseException] = []

    def work(me: int) -> None:
        try:
            for n in range(200):
                name = f"{me}-{n}"
                with volume.open(name, "w+b") as file:
                    file.write(name.encode() * 100)
                    file.seek(0)
                    assert file.read() == name.encode() * 100
                shared.write(b"%8d" % me)
                if n % 3:
                    volume.rename(name, f"r{name}")
                if n % 50 == 0:
                    lanefs.fsync(shared)
                    volume.listdir("/")
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    content = shared.pread(1 << 20, 0)
    assert sorted(content[i : i + 8] for i in range(0, len(content), 8)) == sorted(
        b"%8d" % me for me in range(4) for _ in range(200)
    )
    assert len(volume.listdir()) == 801


def test_files_closed_under_threads(volume: lanefs.Volume) -> None:
    """Closing a file that others use answers them; nothing crashes."""
    volume.write_bytes("f", b"x" * 100_000)
    for _ in range(30):
        file = volume.open_raw("f", os.O_RDWR)
        odd: list[BaseException] = []

        def use(file: lanefs.File = file, odd: list[BaseException] = odd) -> None:
            try:
                while True:
                    assert len(file.pread(100_000, 0)) == 100_000
            except ValueError:
                pass
            except BaseException as e:
                odd.append(e)

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.002)
        file.close()
        for thread in threads:
            thread.join()
        assert not odd


def test_a_volume_closed_under_threads(tmp_path: Path) -> None:
    for _ in range(5):
        volume = lanefs.Volume.in_memory("16M")
        odd: list[BaseException] = []

        def use(volume: lanefs.Volume = volume, odd: list[BaseException] = odd) -> None:
            n = 0
            try:
                while True:
                    n += 1
                    with volume.open(f"{threading.get_ident()}-{n % 50}", "wb") as file:
                        file.write(b"x" * 5000)
            except (ValueError, OSError):
                pass
            except BaseException as e:
                odd.append(e)

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        try:
            volume.close()
        except OSError:
            pass  # the buffer of a file that was written at that moment
        for thread in threads:
            thread.join()
        assert not odd and volume.closed


def test_fsync_of_files_of_all_kinds(image: Path) -> None:
    """What fsync answered is found after the process has ended without a word."""
    code = """import lanefs, os, sys
v = lanefs.Volume(sys.argv[1])
t = v.open("text", "w"); t.write("text"); lanefs.fsync(t)
b = v.open("bytes", "wb"); b.write(b"bytes"); lanefs.fdatasync(b)
r = v.open("raw", "wb", 0); r.write(b"raw"); lanefs.fsync(r)
v.mkdir("dir"); v.open_raw("dir", os.O_DIRECTORY).fsync()
os._exit(7)"""
    run(code, image, expect=7)
    with lanefs.Volume(image) as volume:
        assert volume.read_bytes("text") == b"text"
        assert volume.read_bytes("bytes") == b"bytes"
        assert volume.read_bytes("raw") == b"raw"
        assert volume.isdir("dir")
    with pytest.raises(TypeError):
        lanefs.fsync(io.BytesIO())
    with pytest.raises(AttributeError):
        lanefs.fsync(3)  # type: ignore[arg-type]


def test_another_file_system_at_the_same_time(volume: lanefs.Volume, tmp_path: Path) -> None:
    """Files of two volumes are kept apart."""
    with lanefs.Volume.in_memory("16M") as other:
        volume.write_bytes("f", b"one")
        other.write_bytes("f", b"two")
        assert (volume.read_bytes("f"), other.read_bytes("f")) == (b"one", b"two")
        assert not os.path.samestat(volume.stat("f"), other.stat("f"))
        with volume.open_raw("f") as source, other.open_raw("f", os.O_RDWR) as target:
            assert source.copy_file_range(target, 3, 0, 0) == 3
        assert other.read_bytes("f") == b"one"


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="mounts")
def test_a_mount_beside(volume: lanefs.Volume, tmp_path: Path) -> None:
    volume.write_bytes("f", b"from here")
    volume.serve_mount(tmp_path)
    try:
        with pytest.raises(OSError) as busy:
            volume.serve_mount(tmp_path)
        assert busy.value.errno == errno.EBUSY
        assert (tmp_path / "f").read_bytes() == b"from here"
        subprocess.run(["cp", tmp_path / "f", tmp_path / "g"], check=True)
        assert volume.read_bytes("g") == b"from here"
    finally:
        volume.unmount()
    with pytest.raises(OSError):
        volume.unmount()
    assert os.listdir(tmp_path) == []
