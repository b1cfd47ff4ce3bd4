"""The same calls on a directory of the host and on a volume: the same answers, the same exceptions."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lanefs
import pytest


class Host:
    """A directory of the host, with the calls of a volume."""

    def __init__(self, root: Path) -> None:
        self.root = os.fspath(root)

    def _at(self, path: Any) -> Any:
        if isinstance(path, bytes):
            return os.fsencode(self.root) + b"/" + path
        if isinstance(path, os.PathLike):
            return Path(self.root) / os.fspath(path)
        return self.root + "/" + path if isinstance(path, str) else path

    def open(self, path: Any, *rest: Any, **named: Any) -> Any:
        if not isinstance(path, (str, bytes, os.PathLike)):
            # A number is a descriptor there.
            raise TypeError
        return open(self._at(path), *rest, **named)

    def __getattr__(self, name: str) -> Any:
        call = getattr(os, name, None) or getattr(os.path, name, None) or getattr(shutil, name)
        both = name in ("rename", "replace", "link", "copyfile", "samefile")

        def do(*arguments: Any, **named: Any) -> Any:
            if name == "symlink":
                return call(arguments[0], self._at(arguments[1]))
            n = 2 if both else 1
            return call(*map(self._at, arguments[:n]), *arguments[n:], **named)

        return do


def answer(call: Callable[[], Any]) -> Any:
    """What a call answers: a value, or a kind of exception and its errno."""
    try:
        value = call()
    except Exception as e:
        return type(e), getattr(e, "errno", None)
    if isinstance(value, os.stat_result):
        return value.st_mode, value.st_nlink, value.st_size if value.st_mode & 0o100000 else 0
    return sorted(value) if isinstance(value, list) else value


def tell(file: Any) -> list[Any]:
    """What can be asked of an open file."""
    names = ("readable", "writable", "seekable", "tell", "isatty")
    return [answer(getattr(file, name)) for name in names] + [file.closed, type(file).__name__]


def modes(fs: Any) -> Any:
    """All modes of open, on what is there and what is not."""
    for mode in ("r", "w", "a", "x", "r+", "w+", "a+", "x+"):
        for kind in ("", "b", "t"):
            for path in ("there", "new"):
                for buffering in (-1, 0, 1, 7):
                    if (kind == "b" and buffering == 1) or (kind != "b" and buffering == 0):
                        continue  # a warning; refused, here before the file is made
                    with open(fs._at("there"), "wb") if isinstance(fs, Host) else fs.open(
                        "there", "wb"
                    ) as f:
                        f.write(b"one\r\ntwo\nthree")
                    if fs.exists("new"):
                        fs.remove("new")
                    try:
                        file = fs.open(path, mode + kind, buffering)
                    except Exception as e:
                        yield mode, kind, path, buffering, type(e), getattr(e, "errno", None)
                        continue
                    what = b"12345\n" if kind == "b" else "12345\n"
                    told = tell(file)[:-1]
                    steps: list[Callable[[], Any]] = [
                        lambda: file.read(4),
                        lambda: file.readline(),
                        lambda: file.write(what),
                        lambda: file.tell(),
                        lambda: file.seek(0),
                        lambda: file.readlines(),
                        lambda: file.seek(2),
                        lambda: file.write(what),
                        lambda: file.truncate(),
                        lambda: file.seek(0, 2),
                        lambda: file.writelines([what, what]),
                        lambda: file.flush(),
                        lambda: file.seek(0),
                        lambda: list(file),
                        lambda: file.close(),
                        lambda: file.close(),
                        lambda: file.read(),
                        lambda: file.write(what),
                        lambda: file.seek(0),
                        lambda: file.flush(),
                        lambda: file.readable(),
                        lambda: file.fileno() and None,
                        lambda: file.__enter__(),
                        lambda: iter(file),
                    ]
                    answers = [answer(step) for step in steps]
                    with fs.open(path, "rb") as f:
                        content = f.read()
                    yield mode, kind, path, buffering, told, answers, content


def test_modes(tmp_path: Path, volume: lanefs.Volume) -> None:
    for host, ours in zip(modes(Host(tmp_path)), modes(volume), strict=True):
        assert ours == host, f"{host[:4]}"


BAD_OPENS: list[tuple[Any, ...]] = [
    ("file", "rw"), ("file", ""), ("file", "rr"), ("file", "rbt"), ("file", "q"), ("file", 3),
    ("file", "U"), ("file", "r", 0), ("file", "rb", -2), ("file", "rb", "1"),
    ("file", "rb", -1, "utf-8"), ("file", "rb", -1, None, "strict"),
    ("file", "rb", -1, None, None, "\n"), ("file", "r", -1, None, None, "x"),
    ("file", "r", -1, "no-codec"), ("dir",), ("dir", "w"), ("dir", "rb", 0), ("missing",),
    ("missing/x", "w"), ("file/x", "w"), ("file/",), ("loop",), ("nowhere",), ("nowhere", "x"),
    ("dir/../file",), ("a\0b",), (b"a\0b", "w"), (3.5,), (None,), (["file"],), ("x" * 256, "w"),
    ("x/" * 2100, "w"), (Path("file"),), (b"file",), (bytearray(b"file"),),
]  # fmt: skip


def populate(fs: Any) -> None:
    fs.mkdir("dir")
    fs.open("file", "w").close()
    fs.open("dir/one", "w").close()
    fs.symlink("loop", "loop")
    fs.symlink("missing", "nowhere")
    fs.symlink("dir", "to_dir")


@pytest.mark.parametrize("given", BAD_OPENS, ids=lambda g: repr(g)[:40])
def test_opens(given: tuple[Any, ...], tmp_path: Path, volume: lanefs.Volume) -> None:
    told = []
    for fs in (Host(tmp_path), volume):
        populate(fs)

        def opened(fs: Any = fs) -> Any:
            with fs.open(*given) as file:
                return type(file).__name__, file.read()

        told.append(answer(opened))
    assert told[1] == told[0]


CALLS: list[tuple[str, tuple[Any, ...]]] = [
    *(("stat", (p,)) for p in ("file", "dir", "loop", "nowhere", "missing", "file/x", b"dir")),
    *(("lstat", (p,)) for p in ("loop", "nowhere", "to_dir", "missing")),
    *(("listdir", (p,)) for p in ("dir", b"dir", "file", "missing", Path("dir"), "to_dir", 1.5)),
    *(("mkdir", (p,)) for p in ("dir", "new", "missing/new", "file/new", "nowhere", None)),
    ("mkdir", ("new", "0o700")),
    *(("rmdir", (p,)) for p in ("dir", "file", "missing", "to_dir", "dir/")),
    *(("unlink", (p,)) for p in ("dir", "file", "missing", "loop", "to_dir", "file/")),
    *(("remove", (p,)) for p in (b"file", Path("file"))),
    ("rename", ("file", "dir")), ("rename", ("dir", "file")), ("rename", ("missing", "x")),
    ("rename", ("dir", "dir/x")), ("rename", ("file", "new")), ("replace", (b"file", b"loop")),
    ("rename", ("file",)), ("rename", ("file", 3)),
    ("link", ("file", "new")), ("link", ("dir", "new")), ("link", ("file", "dir")),
    ("symlink", ("x", "file")), ("symlink", ("", "new")), ("symlink", ("x" * 5000, "new")),
    ("readlink", ("loop",)), ("readlink", (b"nowhere",)), ("readlink", ("file",)),
    ("chmod", ("file", 0o7777)), ("chmod", ("missing", 0)), ("chmod", ("nowhere", 0)),
    ("chmod", ("file", "a")), ("chown", ("file", -1, -1)), ("chown", ("missing", 0, 0)),
    ("truncate", ("file", 10)), ("truncate", ("file", -1)), ("truncate", ("dir", 0)),
    ("truncate", ("file", 1 << 70)), ("truncate", ("file", 1.0)),
    ("utime", ("missing",)), ("utime", ("file", (1, 2))), ("utime", ("file", (1.5, -2.25))),
    ("utime", ("file", 3)), ("utime", ("file", (1,))), ("utime", ("file", ("a", "b"))),
    ("utime", ("file", (float("nan"), 0))),
    *(("utime", ("file", (t, 0))) for t in (1e300, 2.0**63, -(2.0**63), -(2.0**64), 1 << 63, 1 << 80)),
    *(("utime", ("file", (0, t))) for t in (float("inf"), -float("inf"), -(1 << 63) - 1)),
    *(("utime", ("file", None, (0, t))) for t in (1 << 80, 1 << 100, -(1 << 94), 1 << 130)),
    ("access", ("file", os.R_OK)),
    ("access", ("missing", os.F_OK)), ("access", ("a\0", os.F_OK)),
    ("exists", ("nowhere",)), ("lexists", ("nowhere",)), ("isdir", ("to_dir",)),
    ("isfile", ("to_dir",)), ("islink", ("to_dir",)), ("islink", ("missing",)),
    ("getsize", ("missing",)), ("getsize", ("file",)), ("samefile", ("dir", "to_dir")),
    ("makedirs", ("a/b/c",)), ("makedirs", ("dir",)), ("makedirs", ("dir/one/x",)),
    ("makedirs", (b"b/c/",)), ("rmtree", ("dir",)), ("rmtree", ("missing",)),
    ("getxattr", ("file", "user.none")), ("listxattr", ("missing",)),
    ("setxattr", ("file", "user.a", "text")), ("removexattr", ("file", "user.none")),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c[0]}{repr(c[1])[:40]}")
def test_calls(call: tuple[str, tuple[Any, ...]], tmp_path: Path, volume: lanefs.Volume) -> None:
    name, given = call
    told = []
    for fs in (Host(tmp_path), volume):
        populate(fs)
        told.append([answer(lambda fs=fs: getattr(fs, name)(*given)), tree(fs)])
    assert told[1] == told[0]


def tree(fs: Any) -> list[str]:
    """The names below, as the host and a volume both tell them."""
    root = fs.root if isinstance(fs, Host) else "/"
    walk = os.walk(root) if isinstance(fs, Host) else fs.walk(root)
    found = []
    for here, directories, others in walk:
        below = os.path.relpath(here, root)
        found += [os.path.join(below, name) for name in directories + others]
    return sorted(found)


def test_walks(tmp_path: Path, volume: lanefs.Volume) -> None:
    for fs in (Host(tmp_path), volume):
        for path in ("a/b/c", "a/d", "e"):
            fs.makedirs(path)
            fs.open(path + "/f", "w").close()
        fs.symlink("../e", "a/up")
    for topdown in (True, False):
        for followlinks in (True, False):
            told = []
            for call, top in ((os.walk, str(tmp_path)), (volume.walk, "/")):
                found = list(call(top, topdown=topdown, followlinks=followlinks))
                told.append({(os.path.relpath(h, top), *sorted(d), *sorted(o)) for h, d, o in found})
                seen = {h: i for i, (h, _, _) in enumerate(found)}
                for here, directories, _ in found:
                    for name in directories:
                        below = seen.get(os.path.join(here, name))
                        assert below is None or (below > seen[here]) == topdown
            assert told[1] == told[0]
    errors: list[OSError] = []
    assert list(volume.walk("missing", onerror=errors.append)) == []
    assert isinstance(errors[0], FileNotFoundError) and errors[0].filename == "missing"
    for _, directories, _ in volume.walk(b"/"):
        directories[:] = [d for d in directories if d != b"a"]
        assert b"b" not in directories


def test_scandir(tmp_path: Path, volume: lanefs.Volume) -> None:
    for fs in (Host(tmp_path), volume):
        populate(fs)
    told = []
    for scan, root in ((os.scandir, str(tmp_path)), (volume.scandir, "/")):
        with scan(root) as entries:
            told.append({
                (
                    e.name,
                    os.fspath(e).removeprefix(root).strip("/"),
                    *(answer(lambda e=e, c=c, f=f: getattr(e, c)(follow_symlinks=f))
                      for c in ("is_dir", "is_file", "stat") for f in (True, False)),
                    e.is_symlink(),
                )
                for e in entries
            })  # fmt: skip
        assert list(entries) == []
    # The length of a symbolic link's target and the size of a directory are their own.
    assert told[1] == told[0]
    assert {type(e.name) for e in volume.scandir(b"/")} == {bytes}
    assert volume.scandir("dir").__next__().inode() == volume.stat("dir/one").st_ino


def test_descriptors(tmp_path: Path, volume: lanefs.Volume) -> None:
    """Calls of os on descriptors, and of files of a volume."""
    flags = os.O_RDWR | os.O_CREAT
    fd = os.open(tmp_path / "file", flags, 0o644)
    file = volume.open_raw("file", flags, 0o644)
    into = [bytearray(3), bytearray(4)]
    pairs: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: os.pwrite(fd, b"hello", 3), lambda: file.pwrite(b"hello", 3)),
        (lambda: os.pread(fd, 100, 1), lambda: file.pread(100, 1)),
        (lambda: os.pread(fd, -1, 1), lambda: file.pread(-1, 1)),
        (lambda: os.pread(fd, 1, -1), lambda: file.pread(1, -1)),
        (lambda: os.pwrite(fd, b"x", -1), lambda: file.pwrite(b"x", -1)),
        (lambda: os.pwrite(fd, "x", 0), lambda: file.pwrite("x", 0)),  # type: ignore[arg-type]
        (lambda: os.pread(fd, 1.0, 0), lambda: file.pread(1.0, 0)),  # type: ignore[arg-type]
        (lambda: os.preadv(fd, into, 2), lambda: file.preadv(into, 2)),
        (lambda: os.preadv(fd, [b"12"], 2), lambda: file.preadv([b"12"], 2)),
        (lambda: os.pwritev(fd, [b"a", b"", b"bc"], 1), lambda: file.pwritev([b"a", b"", b"bc"], 1)),
        (lambda: os.lseek(fd, 0, os.SEEK_END), lambda: file.seek(0, os.SEEK_END)),
        (lambda: os.lseek(fd, -100, os.SEEK_CUR), lambda: file.seek(-100, os.SEEK_CUR)),
        (lambda: os.lseek(fd, 0, 99), lambda: file.seek(0, 99)),
        (lambda: os.lseek(fd, 1 << 70, 0), lambda: file.seek(1 << 70)),
        (lambda: os.ftruncate(fd, 6), lambda: file.truncate(6) and None),
        (lambda: os.fstat(fd), lambda: file.stat()),
        (lambda: os.fsync(fd), lambda: file.fsync()),
        (lambda: os.fdatasync(fd), lambda: file.fdatasync()),
        (lambda: os.fchmod(fd, 0o600), lambda: file.chmod(0o600)),
        (lambda: os.fchown(fd, -1, -1), lambda: file.chown(-1, -1)),
        (lambda: os.utime(fd, (5, 6)), lambda: file.utime((5, 6))),
        (lambda: os.fstat(fd).st_mtime_ns, lambda: file.stat().st_mtime_ns),
        (lambda: os.posix_fallocate(fd, 0, 10000), lambda: file.fallocate(0, 0, 10000)),
        (lambda: os.posix_fallocate(fd, 0, 0), lambda: file.fallocate(0, 0, 0)),
        (lambda: os.lseek(fd, 0, os.SEEK_END), lambda: file.seek(0, os.SEEK_END)),
        (lambda: fcntl.flock(fd, fcntl.LOCK_EX), lambda: file.flock(fcntl.LOCK_EX)),
        (lambda: fcntl.flock(fd, 77), lambda: file.flock(77)),
        (lambda: fcntl.lockf(fd, fcntl.LOCK_EX, 10, 5), lambda: file.lockf(fcntl.LOCK_EX, 10, 5)),
        (lambda: fcntl.lockf(fd, fcntl.LOCK_UN, 1, -9), lambda: file.lockf(fcntl.LOCK_UN, 1, -9)),
        (lambda: os.close(fd), lambda: file.close()),
    ]
    for n, (host, ours) in enumerate(pairs):
        into[0][:], into[1][:] = b"\0" * 3, b"\0" * 4
        expected = answer(host), bytes(into[0]), bytes(into[1])
        into[0][:], into[1][:] = b"\0" * 3, b"\0" * 4
        assert (answer(ours), bytes(into[0]), bytes(into[1])) == expected, n


def test_buffers_of_io(volume: lanefs.Volume) -> None:
    """The classes of io take a raw file as they take their own."""
    raw = volume.open("f", "xb", 0)
    assert isinstance(raw, lanefs.File) and isinstance(raw, io.RawIOBase)
    with io.BufferedWriter(raw, 16) as buffered:
        buffered.write(b"0123456789" * 5)
    assert raw.closed
    with io.BufferedRandom(volume.open("f", "r+b", 0)) as both:
        both.seek(10)
        assert both.read(3) == b"012"
        both.write(b"***")
        both.seek(0)
        assert both.read()[10:20] == b"012***6789"
    with io.TextIOWrapper(io.BufferedReader(volume.open("f", "rb", 0)), "ascii") as text:
        assert text.read(5) == "01234" and text.name == "f"
    lines = volume.open("lines", "wt", encoding="utf-8", newline="\r\n")
    lines.write("a\nb\n")
    lines.close()
    assert volume.read_bytes("lines") == b"a\r\nb\r\n"
    assert volume.open("lines", newline=None).readlines() == ["a\n", "b\n"]
