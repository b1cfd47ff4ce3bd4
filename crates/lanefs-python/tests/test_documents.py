"""The programs of docs/PYTHON.md run, the package's own example too, and the types hold."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import lanefs
import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs/PYTHON.md"


def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(programs) == 2
    for program in programs * 2:  # again, on what they left
        if "pandas" in program and importlib.util.find_spec("pandas") is None:
            pytest.skip("pandas is missing")
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    with lanefs.Volume(tmp_path / "disk.lane") as volume:
        assert volume.read_bytes("notes/2026/today.txt") == b"kept\n" * 2
        assert volume.exists("frames.parquet") and volume.getsize("numbers") == 4099


def test_the_example_of_the_package_runs(tmp_path: Path) -> None:
    assert lanefs.__doc__ is not None
    lines = [line[4:] for line in lanefs.__doc__.splitlines() if line.startswith("    ")]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("['notes.txt']\n", 0), done.stderr


@pytest.mark.parametrize("how", ["raw", "open"])
def test_the_program_of_the_benchmark_runs(how: str, image: Path, tmp_path: Path) -> None:
    program = HERE.parents[1] / "lanefs-bench/src/embed/create.py"
    for kind, place in (("dir", tmp_path), ("image", image)):
        told = subprocess.run(
            [sys.executable, program, kind, place, how, "50"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert re.fullmatch(r"first [\d.e-]+ [\d.e-]+\nagain [\d.e-]+ [\d.e-]+\n", told), told
    assert not (tmp_path / "files").exists()


def test_every_call_says_what_it_does() -> None:
    for kind in (lanefs.Volume, lanefs.File, lanefs.DirEntry, lanefs.ScanDir):
        for name in dir(kind):
            if not name.startswith("_"):
                assert getattr(kind, name).__doc__, f"{kind.__name__}.{name}"


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is missing")
def test_types(tmp_path: Path) -> None:
    """The stub has what the module has, and a program that uses it is checked."""
    config = HERE.parent / "pyproject.toml"
    environment = {**os.environ, "MYPYPATH": ""}
    for command in (
        ["mypy.stubtest", "lanefs", "--allowlist", HERE / "stubtest.allow", "--mypy-config-file", config],
        ["mypy", "--config-file", config, "--strict", HERE / "typed.py"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *map(str, command)],
            cwd=tmp_path, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
