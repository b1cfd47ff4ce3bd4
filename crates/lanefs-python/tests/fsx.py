"""A file system exerciser after Apple's fsx: random operations on one file, and on a copy of it in
memory that says what every read must give. The same seed does the same again.

    python fsx.py [--ops N] [--seed S] [--buffered] [--image FILE]

Operations: reads and writes (also of several buffers, into memory of the caller, at the position and
at an offset), truncation, allocation, punched holes and zeroed ranges, copies of ranges, fsync, close
and open; with --buffered those that a buffered file of `io` has. With --image the volume lies there
(it is made), and is closed and opened now and then.
"""

from __future__ import annotations

import argparse
import os
import random
from collections import deque
from pathlib import Path
from typing import Any

import lanefs

LONGEST = 512 << 10
WIDEST = 64 << 10
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16


class Fsx:
    """A file, and the content that it must have."""

    def __init__(self, seed: int, image: Path | None, buffered: bool) -> None:
        self.chance = random.Random(seed)
        self.image = image
        self.buffered = buffered
        self.good = bytearray()
        self.done: deque[str] = deque(maxlen=30)
        self.volume = self.open_volume()
        self.file: Any = None
        self.reopen()

    def open_volume(self) -> lanefs.Volume:
        if self.image is None:
            return lanefs.Volume.in_memory("64M")
        return lanefs.Volume(self.image, create_size="64M")

    def reopen(self) -> None:
        if self.file is not None:
            self.file.close()
        if self.image is not None and self.chance.random() < 0.02:
            self.volume.close()
            self.volume = self.open_volume()
        if not self.volume.exists("fsx"):
            self.volume.write_bytes("fsx", b"")
        if self.buffered:
            self.file = self.volume.open("fsx", "r+b", self.chance.choice((-1, 100, 5000, 1 << 17)))
        else:
            self.file = self.volume.open_raw("fsx", os.O_RDWR)

    def part(self, limit: int) -> tuple[int, int]:
        """A range below `limit`."""
        at = self.chance.randrange(limit)
        length = 1 + self.chance.randrange(min(WIDEST, limit - at))
        return at, 1 + length % 100 if self.chance.random() < 0.25 else length

    def put(self, at: int, data: bytes) -> None:
        """Change the copy."""
        if at > len(self.good):
            self.good.extend(bytes(at - len(self.good)))
        self.good[at : at + len(data)] = data

    def check(self, what: str, got: bytes, expected: bytes) -> None:
        if got != expected:
            same = next(
                (i for i, (a, b) in enumerate(zip(got, expected)) if a != b),
                min(len(got), len(expected)),
            )
            raise AssertionError(
                f"{what}: {len(got)} bytes, {len(expected)} expected, different from {same} on"
            )

    def write(self) -> str:
        at, length = self.part(LONGEST)
        data = self.chance.randbytes(length)
        how = self.chance.randrange(4 if not self.buffered else 1)
        if how == 0:
            self.file.seek(at)
            wrote = self.file.write(self.chance.choice((bytes, bytearray, memoryview))(data))
        elif how == 1:
            wrote = self.file.pwrite(data, at)
        elif how == 2:
            cut = self.chance.randrange(length + 1)
            wrote = self.file.pwritev([data[:cut], b"", memoryview(data)[cut:]], at)
        else:
            self.file.seek(at)
            self.file.writelines([data[:10], bytearray(data[10:])])
            wrote = length
        if wrote != length:
            raise AssertionError(f"{wrote} bytes of {length} were written")
        self.put(at, data)
        return f"write {at} {length} by {how}"

    def read(self) -> str:
        at, length = self.part(LONGEST)
        expected = bytes(self.good[at : at + length])
        how = self.chance.randrange(6 if not self.buffered else 4)
        self.file.seek(at)
        if how == 0:
            got = self.file.read(length)
        elif how == 1:
            into = bytearray(length)
            got = bytes(into[: self.file.readinto(into)])
        elif how == 2:
            got = self.file.readline(length)
            expected = expected[: expected.find(b"\n") + 1 or length]
        elif how == 3:
            got, expected = self.file.read(), bytes(self.good[at:])
        elif how == 4:
            got = self.file.pread(length, at)
        else:
            parts = [bytearray(length // 2), bytearray(length - length // 2)]
            n = self.file.preadv(parts, at)
            got = b"".join(parts)[:n]
        self.check(f"read {at} {length} by {how}", got, expected)
        if how < 4 and self.file.tell() != at + len(got):
            raise AssertionError(f"the position is {self.file.tell()}, not {at + len(got)}")
        return f"read {at} {length} by {how}"

    def truncate(self) -> str:
        to = self.chance.randrange(LONGEST)
        self.file.truncate(to)
        self.put(to, b"")
        del self.good[to:]
        return f"truncate {to}"

    def allocate(self) -> str:
        at, length = self.part(LONGEST)
        mode = self.chance.choice(
            (0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE)
        )
        self.file.fallocate(mode, at, length)
        if not mode & KEEP_SIZE and at + length > len(self.good):
            self.put(at + length, b"")
        if mode & (PUNCH_HOLE | ZERO_RANGE):
            end = min(at + length, len(self.good))
            if end > at:
                self.good[at:end] = bytes(end - at)
        return f"fallocate {mode} {at} {length}"

    def copy(self) -> str:
        at, length = self.part(LONGEST // 2)
        to = LONGEST // 2 + self.chance.randrange(LONGEST // 2 - length + 1)
        n = self.file.copy_file_range(self.file, length, at, to)
        data = bytes(self.good[at : at + length])
        if n != len(data):
            raise AssertionError(f"{n} bytes were copied, not {len(data)}")
        if data:
            self.put(to, data)
        return f"copy {at} {length} to {to}"

    def step(self) -> None:
        what = self.chance.randrange(100)
        if what < 35:
            told = self.write()
        elif what < 75:
            told = self.read()
        elif what < 83:
            told = self.truncate()
        elif what < 90 and not self.buffered:
            told = self.allocate()
        elif what < 94 and not self.buffered:
            told = self.copy()
        elif what < 97:
            (lanefs.fsync if what < 96 else lanefs.fdatasync)(self.file)
            told = "fsync"
        else:
            self.reopen()
            told = "reopen"
        self.done.append(f"{told} (size {len(self.good)})")

    def end(self) -> None:
        self.reopen()
        self.check("at the end", self.volume.read_bytes("fsx"), bytes(self.good))
        self.file.close()
        self.volume.close()


def fsx(ops: int, seed: int, image: Path | None = None, buffered: bool = False) -> None:
    """Do so many operations."""
    file = Fsx(seed, image, buffered)
    for n in range(ops):
        try:
            file.step()
        except Exception as e:
            last = "\n  ".join(file.done)
            raise AssertionError(f"operation {n} of seed {seed}: {e!r}; before:\n  {last}") from e
    file.end()


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--ops", type=int, default=100_000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--buffered", action="store_true")
    arguments.add_argument("--image", type=Path)
    given = arguments.parse_args()
    fsx(given.ops, given.seed, given.image, given.buffered)
    print(f"{given.ops} operations, seed {given.seed}")


if __name__ == "__main__":
    main()
