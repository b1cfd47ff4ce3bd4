"""What the tests have in common. `cargo xtask python-test` runs them against an installed wheel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lanefs
import pytest


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image with an empty volume."""
    path = tmp_path / "disk.lane"
    lanefs.format(path, "64M")
    return path


@pytest.fixture
def volume() -> Iterator[lanefs.Volume]:
    """An empty volume in memory."""
    with lanefs.Volume.in_memory("64M", umask=0o022) as volume:
        yield volume


def run(code: str, *arguments: object, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program in another interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == expect, done
    return done
