"""Random operations on one file against a copy in memory: fsx.py, in short.
LANEFS_OPS=100000 for more of them."""

import os
from pathlib import Path

import pytest
from fsx import fsx


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("on_disk", [False, True])
def test_fsx(tmp_path: Path, on_disk: bool, buffered: bool) -> None:
    fsx(int(os.environ.get("LANEFS_OPS", "3000" if on_disk else "15000")), 6, tmp_path / "disk.lane" if on_disk else None, buffered)
