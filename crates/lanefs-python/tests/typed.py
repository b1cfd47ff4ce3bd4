"""What a type checker must make of the package; it is checked, not run."""

import io
import os
from pathlib import Path
from typing import assert_type

import lanefs

with lanefs.Volume(Path("disk.lane"), cache_size="64M") as volume:
    assert_type(volume, lanefs.Volume)
    assert_type(volume.open("a"), io.TextIOWrapper)
    assert_type(volume.open(b"a", "w", encoding="utf-8"), io.TextIOWrapper)
    assert_type(volume.open("a", "rb"), io.BufferedReader)
    assert_type(volume.open("a", "wb"), io.BufferedWriter)
    assert_type(volume.open("a", "r+b"), io.BufferedRandom)
    assert_type(volume.open("a", "rb", 0), lanefs.File)
    assert_type(volume.open_raw("a", os.O_RDWR), lanefs.File)
    assert_type(volume.stat("a"), os.stat_result)
    assert_type(volume.listdir(), list[str])
    assert_type(volume.listdir(b"a"), list[bytes])
    assert_type([entry.name for entry in volume.scandir(b"a")], list[bytes])
    assert_type(volume.as_user(1, 1), lanefs.Volume)
    assert_type(list(volume.walk("a")), list[tuple[str, list[str], list[str]]])
    assert_type(lanefs.opened(["a", "b"]), lanefs.Volume | None)
    lanefs.fsync(volume.open("a", "w"))
    lanefs.fsync(volume.open("a", "wb", 0))
    io.BufferedReader(volume.open_raw("a"))
