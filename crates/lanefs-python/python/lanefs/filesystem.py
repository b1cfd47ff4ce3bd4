"""LaneFS for fsspec: `lanefs://disk.lane:/path`, for pandas, pyarrow, dask and whatever else opens
files by fsspec.

    pandas.read_parquet("lanefs://disk.lane:/frames/1.parquet")
    frame.to_parquet("lanefs:///frames/2.parquet", storage_options={"volume": volume})

fsspec finds it by its entry point, so nothing has to be imported.
"""

from __future__ import annotations

import io
import os
import stat as modes
import uuid
from collections.abc import Iterable
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.utils import stringify_path

from ._volume import Volume, opened

__all__ = ["LaneFileSystem"]

_PROTOCOL = "lanefs://"


def _parts(url: str) -> tuple[str | None, str]:
    """Return the image and the path of 'lanefs://IMAGE:/PATH'; of a path alone no image."""
    image, path = None, url
    if url.startswith(_PROTOCOL):
        path = url[len(_PROTOCOL) :]
        before, colon, behind = path.partition(":/")
        if colon and before:
            image, path = before, behind
        elif path.endswith(":"):
            image, path = path[:-1], ""
    return image, "/" + path.strip("/")


class LaneFileSystem(AbstractFileSystem):
    """A volume of LaneFS in this process, as a file system of fsspec.

    Storage options:

    - `image`: the image, or several in a list; in a URL it stands before ':/'. A volume that this
      process has open is used as it is; else it is opened, and closed at the end of the process or
      by `close`.
    - `volume`: an open `lanefs.Volume`; takes the place of `image`.
    - `fsync=True`: a file that was written is durable when it is closed. Default: as on other file
      systems, some time later, or with `sync`.
    - `auto_mkdir=True`: missing directories are made above a file that is written.
    - All others are those of `lanefs.Volume`: `read_only`, `order`, `cache_size`, `create_size`, ...

    Failures are those of the calls of `lanefs.Volume`: FileNotFoundError and so on. Within a
    transaction files appear under their names when it ends, each by a rename.
    """

    protocol = "lanefs"
    root_marker = "/"

    def __init__(
        self,
        image: Any = None,
        volume: Volume | None = None,
        *,
        fsync: bool = False,
        auto_mkdir: bool = False,
        **options: Any,
    ) -> None:
        # Those that are fsspec's own.
        known = ("asynchronous", "loop", "skip_instance_cache", "use_listings_cache")
        super().__init__(**{name: options.pop(name) for name in known if name in options})
        if (image is None) == (volume is None):
            raise ValueError(
                "name one volume: lanefs://IMAGE:/PATH, or one of the storage options "
                "image=PATH and volume=lanefs.Volume(...)"
            )
        if volume is not None and options:
            raise TypeError(f"an open volume takes no options: {', '.join(options)}")
        self.fsync = fsync
        self.auto_mkdir = auto_mkdir
        self._image = os.path.abspath(image) if isinstance(image, (str, os.PathLike)) else image
        self._options = options
        self._volume = volume
        self._opened = False
        if volume is None:
            self.volume  # noqa: B018: what is wrong with the image shows now

    @property
    def volume(self) -> Volume:
        """The volume; opened again if it is one of an image and was closed."""
        volume = self._volume
        if volume is None or (self._image is not None and volume.closed):
            volume = opened(self._image)
            self._opened = volume is None
            if volume is None:
                volume = Volume(self._image, **self._options)
            self._volume = volume
        return volume

    @property
    def fsid(self) -> str:
        return f"lanefs_{self.volume.uuid}"

    def close(self) -> None:
        """Close the volume, if this file system has opened it."""
        if self._opened and self._volume is not None:
            self._volume.close()

    def sync(self) -> None:
        """Make durable all that was done before."""
        self.volume.sync()

    # URLs.

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return _parts(stringify_path(path))[1]

    @staticmethod
    def _get_kwargs_from_urls(path: Any) -> dict[str, Any]:
        image, _ = _parts(stringify_path(path))
        # One file system for one image, wherever the process goes.
        return {} if image is None else {"image": os.path.abspath(image)}

    def unstrip_protocol(self, name: str) -> str:
        path = self._strip_protocol(name)
        if isinstance(self._image, str):
            return f"{_PROTOCOL}{self._image}:{path}"
        return f"{_PROTOCOL}{path}"

    # What there is.

    def info(self, path: Any, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        found = self.volume.lstat(path)
        result: dict[str, Any] = {"name": path}
        if modes.S_ISLNK(found.st_mode):
            result["islink"] = True
            result["destination"] = self.volume.readlink(path)
            try:
                found = self.volume.stat(path)
            except FileNotFoundError:
                pass  # it leads nowhere
        else:
            result["islink"] = False
        if modes.S_ISDIR(found.st_mode):
            result["type"] = "directory"
        elif modes.S_ISREG(found.st_mode):
            result["type"] = "file"
        else:
            result["type"] = "link" if modes.S_ISLNK(found.st_mode) else "other"
        result["size"] = found.st_size
        result["created"] = found.st_ctime
        for name in ("mode", "uid", "gid", "mtime", "ino", "nlink"):
            result[name] = getattr(found, "st_" + name)
        result["mtime_ns"] = found.st_mtime_ns
        return result

    def ls(self, path: Any, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        info = self.info(path)
        if info["type"] == "directory":
            below = path.rstrip("/")
            names = [f"{below}/{name}" for name in self.volume.listdir(path)]
            names.sort()
        else:
            names = [path]
        if not detail:
            return names
        infos = []
        for name in names:
            try:
                infos.append(self.info(name))
            except FileNotFoundError:
                pass  # removed meanwhile
        return infos

    def exists(self, path: Any, **kwargs: Any) -> bool:
        return self.volume.exists(self._strip_protocol(path))

    def lexists(self, path: Any, **kwargs: Any) -> bool:
        return self.volume.lexists(self._strip_protocol(path))

    def isfile(self, path: Any) -> bool:
        return self.volume.isfile(self._strip_protocol(path))

    def isdir(self, path: Any) -> bool:
        return self.volume.isdir(self._strip_protocol(path))

    def islink(self, path: Any) -> bool:
        return self.volume.islink(self._strip_protocol(path))

    def created(self, path: Any) -> datetime:
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path: Any) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def ukey(self, path: Any) -> str:
        info = self.info(path)
        return sha256(repr([info[n] for n in ("ino", "size", "mtime_ns")]).encode()).hexdigest()

    # Changes.

    def mkdir(self, path: Any, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self.volume.makedirs(path)
        else:
            self.volume.mkdir(path)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        self.volume.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: Any) -> None:
        self.volume.rmdir(self._strip_protocol(path))

    def _rm(self, path: Any) -> None:
        self.volume.unlink(self._strip_protocol(path))

    def rm_file(self, path: Any) -> None:
        self._rm(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        paths: Iterable[Any] = path if isinstance(path, (list, tuple, set)) else [path]
        for one in paths:
            one = self._strip_protocol(one)
            if any(letter in one for letter in "*?["):
                self.rm(self.expand_path(one, maxdepth=maxdepth), recursive)
            elif self.volume.isdir(one) and not self.volume.islink(one):
                if not recursive:
                    raise IsADirectoryError(f"{one}: a directory; recursive=True removes it")
                if one == "/":
                    raise ValueError("the root of a volume is not removed")
                self.volume.rmtree(one)
            else:
                self._rm(one)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, **kwargs: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.volume.isdir(target) and source != target:
            target = target.rstrip("/") + "/" + source.rpartition("/")[2]
        self._made_above(target)
        self.volume.rename(source, target)

    mv_file = mv

    def cp_file(self, path1: Any, path2: Any, **kwargs: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.volume.isdir(source):
            self.volume.makedirs(target, exist_ok=True)
            return
        self._made_above(target)
        self.volume.copyfile(source, target)

    def link(self, src: Any, dst: Any, **kwargs: Any) -> None:
        self.volume.link(self._strip_protocol(src), self._strip_protocol(dst))

    def symlink(self, src: Any, dst: Any, **kwargs: Any) -> None:
        # The target stays as it is: it may be relative to the link.
        target = stringify_path(src)
        if target.startswith(_PROTOCOL):
            target = self._strip_protocol(target)
        self.volume.symlink(target, self._strip_protocol(dst))

    def chmod(self, path: Any, mode: int) -> None:
        self.volume.chmod(self._strip_protocol(path), mode)

    def touch(self, path: Any, truncate: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        self._made_above(path)
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if truncate else 0)
        self.volume.open_raw(path, flags).close()
        self.volume.utime(path)

    def _made_above(self, path: str) -> None:
        if self.auto_mkdir:
            self.volume.makedirs(path.rpartition("/")[0] or "/", exist_ok=True)

    # Content.

    def cat_file(
        self, path: Any, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        if start is None and end is None:
            return self.volume.read_bytes(path)
        with self.volume.open_raw(path) as file:
            size = file.stat().st_size
            begin = 0 if start is None else (start if start >= 0 else max(0, size + start))
            finish = size if end is None else (end if end >= 0 else size + end)
            return file.pread(max(0, finish - begin), begin)

    def _open(
        self,
        path: Any,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        size = block_size or io.DEFAULT_BUFFER_SIZE
        if mode not in ("wb", "xb", "ab"):
            return self.volume.open(path, mode, size)
        self._made_above(path)
        if autocommit and not self.fsync:
            return self.volume.open(path, mode, size)
        return _Written(self.volume, path, mode, size, autocommit, self.fsync)


class _Written(io.BufferedWriter):
    """A file that is durable when it is closed, or gets its name when it is committed."""

    def __init__(
        self, volume: Volume, path: str, mode: str, size: int, autocommit: bool, fsync: bool
    ) -> None:
        self._volume = volume
        self._path = path
        self._fsync = fsync
        self._exclusive = mode == "xb"
        self._written = path
        if not autocommit:
            directory, _, name = path.rpartition("/")
            # Short enough, however long the name is.
            self._written = f"{directory}/.{name[:100]}.{uuid.uuid4().hex}"
        if not autocommit and mode == "ab" and volume.exists(path):
            volume.copyfile(path, self._written)
        super().__init__(volume.open(self._written, mode, 0), size)
        volume._streams.add(self)

    def close(self) -> None:
        if not self.closed:
            try:
                self.flush()
                if self._fsync:
                    self.raw.fsync()  # type: ignore[attr-defined]
            finally:
                super().close()

    def commit(self) -> None:
        """Give the file its name, in one step: what had it is replaced."""
        if self._written != self._path:
            self.close()
            # RENAME_NOREPLACE
            self._volume.rename(self._written, self._path, flags=1 if self._exclusive else 0)
            self._written = self._path
            if self._fsync:
                with self._volume.open_raw(self._path) as file:
                    file.fsync()

    def discard(self) -> None:
        """Remove the file that has no name yet."""
        if self._written != self._path:
            self.close()
            self._volume.unlink(self._written)
