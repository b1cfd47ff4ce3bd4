"""Volumes: what `lanefs.Volume` has beside the calls of its compiled part."""

from __future__ import annotations

import atexit
import errno
import io
import os
import sys
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, AnyStr, Literal, TypeAlias, overload

from . import _lanefs
from ._lanefs import File
from ._modes import flags_of, stack

if TYPE_CHECKING:
    from typing import Self

    from _typeshed import (
        OpenBinaryMode,
        OpenBinaryModeReading,
        OpenBinaryModeUpdating,
        OpenBinaryModeWriting,
        OpenTextMode,
    )

Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

__all__ = ["Volume", "fdatasync", "format", "fsync", "opened"]

# The volumes of this process, by the paths of their images.
_by_images: weakref.WeakValueDictionary[tuple[str, ...], Volume] = weakref.WeakValueDictionary()


def _images(images: Path | Iterable[Path]) -> list[str]:
    """Return the paths of images as `str`."""
    if isinstance(images, (str, bytes, os.PathLike)):
        images = [images]
    paths = [os.fsdecode(image) for image in images]
    if not paths:
        raise ValueError("no image is named")
    return paths


def _key(images: list[str]) -> tuple[str, ...]:
    return tuple(sorted(os.path.realpath(image) for image in images))


def _size(size: int | str, what: str) -> int:
    """Return a number of bytes, given as it is or as text such as '64M'."""
    if isinstance(size, str):
        number = _lanefs.parse_size(size)
        if number is None:
            raise ValueError(f"{what}: {size!r} is no size such as 4096, '64M' or '4G'")
        return number
    number = size.__index__()
    if number < 0:
        raise ValueError(f"{what}: {size} is negative")
    return number


def _umask() -> int:
    """Return the umask of the process, which no call tells without changing it."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def format(
    images: Path | Iterable[Path],
    size: int | str,
    *,
    label: str = "",
    metadata_copies: int = 1,
) -> None:
    """Make a volume in new image files of `size` bytes each (a multiple of 4096, or text such as
    '4G'), whose root directory belongs to the user of the process.

    `label` is a name for people, of at most 64 bytes. With `metadata_copies=2` everything but the
    content of files lies there twice, so that a damaged block loses nothing that it describes.

    Durable when it returns, as far as the directories of the images are; after a failure nothing is
    left behind. FileExistsError: one of them exists. EINVAL: a size that cannot be.
    """
    _lanefs.format(_images(images), _size(size, "size"), label, metadata_copies)


def opened(images: Path | Iterable[Path]) -> Volume | None:
    """Return the `Volume` by which this process has the volume in these images open, or None."""
    volume = _by_images.get(_key(_images(images)))
    return None if volume is None or volume.closed else volume


def _raw(file: Any) -> File:
    """Flush an open file, and return what is below its buffers."""
    file.flush()
    while not isinstance(file, File):
        below = getattr(file, "buffer", None) or getattr(file, "raw", None)
        if below is None:
            raise TypeError(f"a file of a lanefs.Volume is needed, not {type(file).__name__}")
        file = below
    return file


def fsync(file: IO[Any] | File) -> None:
    """Flush a file of a volume, buffered or not, and make content, attributes and names durable:
    they survive any crash from here on. A new file needs no fsync of its directory.

    EIO, ENOSPC: what was to be durable may not be. ValueError: the file is closed.
    """
    _raw(file).fsync()


def fdatasync(file: IO[Any] | File) -> None:
    """Do what `fsync` does, without times, mode, owner and extended attributes."""
    _raw(file).fdatasync()


class Volume(_lanefs.Volume):
    """An open volume, with the calls of `os` on what is in it.

    Paths are `str` (UTF-8, whatever the locale), `bytes` or `os.PathLike`, from the volume's root;
    there is no working directory. It is a context manager. Any number of threads may use it.

    A volume that nobody closes is closed with the last of its files and views, at the latest at the
    end of the interpreter. In the child of a fork every call is OSError(EIO).
    """

    _streams: weakref.WeakSet[Any]
    _name: str

    def __new__(
        cls,
        images: Path | Iterable[Path],
        *,
        read_only: bool = False,
        noatime: bool = False,
        order: str = "ordered",
        cache_size: int | str | None = None,
        commit: int | None = None,
        dirty_expire: int | None = None,
        umask: int | None = None,
        create_size: int | str | None = None,
    ) -> Self:
        """Open the volume in these images (or block devices), recovering it if it was not closed.

        `order='relaxed'` has an fsync bring the names of its file and what they depend on, not all
        earlier ones. `cache_size`: memory for the volume (default: a quarter of the machine's).
        `commit`, `dirty_expire`: seconds after which names and content are written that nobody
        syncs. `umask` (default: that of the process) is taken from the modes of what is made.
        `create_size`: make the volume, of this size, if there is no image.

        EBUSY: a process has it open, whose number the message has. FileNotFoundError: no such
        image. EINVAL: no volume. EIO, EUCLEAN: damage; the message has what to do.
        """
        paths = _images(images)
        options: list[tuple[str, str | None]] = [("order", order)]
        options += [("ro", None)] if read_only else []
        options += [("noatime", None)] if noatime else []
        if cache_size is not None:
            options.append(("cache_size", str(_size(cache_size, "cache_size"))))
        for name, seconds in (("commit", commit), ("dirty_expire", dirty_expire)):
            if seconds is not None:
                options.append((name, str(_size(seconds, name))))
        if create_size is not None and not any(os.path.lexists(path) for path in paths):
            format(paths, create_size)
        try:
            self = super().__new__(cls, paths, options, _umask() if umask is None else umask)
        except OSError as e:
            if e.errno == errno.EBUSY and opened(paths) is not None:
                e.add_note("This process has it open: lanefs.opened(images) returns the Volume.")
            raise
        self._set_up(", ".join(repr(path) for path in paths))
        _by_images[_key(paths)] = self
        return self

    @classmethod
    def in_memory(cls, size: int | str, *, umask: int | None = None) -> Self:
        """Make a volume of `size` bytes (a multiple of 4096, or text such as '64M') in memory, and
        open it. It is gone when it is closed. EINVAL: a size that cannot be."""
        memory = _size(size, "size")
        mask = _umask() if umask is None else umask
        self = super().__new__(cls, [], [], mask, memory=memory)
        self._set_up("in memory")
        return self

    def as_user(
        self, uid: int, gid: int, groups: Iterable[int] = (), *, umask: int | None = None
    ) -> Self:
        """Return the same volume as another user sees it: what is made by it is that user's, and
        permissions are checked. The volume that was opened sees what the user of the process may.

        Closing it closes only this view; closing the volume closes all views.
        """
        mask = self.umask if umask is None else umask
        user = (uid, gid, list(groups))
        view = super().__new__(type(self), [], [], mask, of=self, user=user)
        view._set_up(self._name)
        view._streams = self._streams
        return view

    def _set_up(self, name: str) -> None:
        self._name = name
        self._streams = weakref.WeakSet()
        _volumes.add(self)

    @property
    def uuid(self) -> uuid.UUID:
        """The identity of the volume."""
        return uuid.UUID(bytes=self._uuid)

    def __enter__(self) -> Self:
        if self.closed:
            raise ValueError("I/O operation on closed volume")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " [closed]" if self.closed else ""
        return f"<lanefs.Volume {self._name}{state} at {id(self):#x}>"

    def close(self) -> None:
        """Flush the files that were opened by `open` and are open, make everything durable and
        close the volume, for all who have it. Files that are still open answer OSError(EIO) then.
        Closing it again does nothing. Of a view of `as_user` only the view is closed.

        EIO, ENOSPC: something could not be made durable; the volume is closed as by a crash.
        """
        failed = None
        if not self.closed:
            failed = self._flush()
        try:
            self._close()
        finally:
            if failed is not None:
                raise failed

    def _flush(self) -> BaseException | None:
        """Flush files that keep what was written; return the first failure."""
        failed: BaseException | None = None
        for stream in list(self._streams):
            try:
                if not stream.closed:
                    stream.flush()
            except Exception as e:
                failed = failed or e
        return failed

    @overload
    def open(
        self,
        path: Path,
        mode: OpenTextMode = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
    ) -> io.TextIOWrapper: ...
    @overload
    def open(
        self,
        path: Path,
        mode: OpenBinaryMode,
        buffering: Literal[0],
        encoding: None = None,
        errors: None = None,
        newline: None = None,
        *,
        permissions: int = 0o666,
    ) -> File: ...
    @overload
    def open(
        self,
        path: Path,
        mode: OpenBinaryModeUpdating,
        buffering: Literal[-1, 1] = -1,
        encoding: None = None,
        errors: None = None,
        newline: None = None,
        *,
        permissions: int = 0o666,
    ) -> io.BufferedRandom: ...
    @overload
    def open(
        self,
        path: Path,
        mode: OpenBinaryModeWriting,
        buffering: Literal[-1, 1] = -1,
        encoding: None = None,
        errors: None = None,
        newline: None = None,
        *,
        permissions: int = 0o666,
    ) -> io.BufferedWriter: ...
    @overload
    def open(
        self,
        path: Path,
        mode: OpenBinaryModeReading,
        buffering: Literal[-1, 1] = -1,
        encoding: None = None,
        errors: None = None,
        newline: None = None,
        *,
        permissions: int = 0o666,
    ) -> io.BufferedReader: ...
    @overload
    def open(
        self,
        path: Path,
        mode: str,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
    ) -> Any: ...
    def open(
        self,
        path: Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
    ) -> Any:
        """Open a file as the built-in `open` does, and return a file of `io`: text, buffered, or
        with `buffering=0` the raw `lanefs.File`. `permissions`, less the umask, are those of a file
        that is made.

        Written content is in the file after `flush` or `close`, and durable after `lanefs.fsync`.
        FileNotFoundError, FileExistsError ('x'), IsADirectoryError, PermissionError; ENOSPC, EROFS.
        """
        flags, kind, is_text = flags_of(mode)
        if not is_text:
            for name, value in (("encoding", encoding), ("errors", errors), ("newline", newline)):
                if value is not None:
                    raise ValueError(f"binary mode doesn't take an {name} argument")
        if not isinstance(buffering, int):
            raise TypeError("open() argument 'buffering' must be int")
        if buffering == 0:
            if is_text:
                raise ValueError("can't have unbuffered text I/O")
            raw = self._open(path, flags, permissions)
            if kind[0] == "a":
                raw.seek(0, os.SEEK_END)
            return raw
        if is_text:
            encoding = io.text_encoding(encoding)
        raw = self._open(path, flags, permissions)
        try:
            track = self._streams.add
            return stack(
                raw, kind, is_text, mode, buffering, encoding, errors, newline, track
            )
        except BaseException:
            raw.close()
            raise

    def makedirs(self, name: Path, mode: int = 0o777, exist_ok: bool = False) -> None:
        """Make a directory and all that are missing above it, as `os.makedirs`."""
        path = os.fspath(name)
        slash: Any = "/" if isinstance(path, str) else b"/"
        path = path.rstrip(slash) or slash
        head = path.rpartition(slash)[0]
        if head.strip(slash) and not self.exists(head):
            self.makedirs(head, exist_ok=True)
        try:
            self.mkdir(path, mode)
        except OSError:
            if not exist_ok or not self.isdir(path):
                raise

    def getsize(self, path: Path) -> int:
        """Return the size of a file in bytes."""
        return self.stat(path).st_size

    def samefile(self, path1: Path, path2: Path) -> bool:
        """Return whether two paths lead to the same file."""
        return os.path.samestat(self.stat(path1), self.stat(path2))

    def walk(
        self,
        top: AnyStr | os.PathLike[AnyStr],
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[AnyStr, list[AnyStr], list[AnyStr]]]:
        """Walk a tree as `os.walk`: yields the path of each directory, the names of directories in
        it, and the others. Going down first, names may be removed from the second list."""
        # A stack of its own: trees may be deeper than that of the interpreter.
        todo: list[Any] = [os.fspath(top)]
        while todo:
            here = todo.pop()
            if isinstance(here, tuple):
                yield here
                continue
            directories: list[Any] = []
            others: list[Any] = []
            below: list[Any] = []
            try:
                with self.scandir(here) as entries:
                    for entry in entries:
                        try:
                            is_directory = entry.is_dir()
                        except OSError:
                            is_directory = False
                        (directories if is_directory else others).append(entry.name)
                        if is_directory and (followlinks or not entry.is_symlink()):
                            below.append(entry.path)
            except OSError as e:
                if onerror is not None:
                    onerror(e)
                continue
            if topdown:
                yield here, directories, others
                join = os.path.join
                paths = [join(here, name) for name in directories]
                todo += reversed([p for p in paths if followlinks or not self.islink(p)])
            else:
                todo.append((here, directories, others))
                todo += reversed(below)


_volumes: weakref.WeakSet[Volume] = weakref.WeakSet()


def _at_exit() -> None:
    """Flush what buffers keep, as the end of the interpreter does with other files. Volumes are
    closed later, when nothing in Python can use them any more."""
    if _lanefs.is_child():
        return
    for volume in list(_volumes):
        if not volume.closed:
            failed = volume._flush()
            if failed is not None:
                print(f"lanefs: {volume!r}: at the end of the process: {failed}", file=sys.stderr)


atexit.register(_at_exit)
