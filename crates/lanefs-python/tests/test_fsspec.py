"""The file system of fsspec: fsspec's own tests for file systems, and what its users call."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import lanefs
import pytest
from fsspec.tests import abstract
from lanefs.filesystem import LaneFileSystem


@pytest.fixture
def fs(volume: lanefs.Volume) -> LaneFileSystem:
    return LaneFileSystem(volume=volume)


class Fixtures(abstract.AbstractFixtures):
    """What fsspec's tests ask for."""

    @pytest.fixture(scope="class")
    @classmethod
    def fs(cls) -> Iterator[LaneFileSystem]:
        with lanefs.Volume.in_memory("64M") as volume:
            yield LaneFileSystem(volume=volume, auto_mkdir=True)

    @pytest.fixture
    def fs_path(self) -> str:
        return "/base"


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


def test_it_is_found_by_its_name() -> None:
    """In an interpreter that has not imported it."""
    code = "import fsspec; print(fsspec.get_filesystem_class('lanefs').__module__)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "lanefs.filesystem"
    assert "lanefs" in fsspec.available_protocols()


@pytest.mark.parametrize(
    ("url", "image", "path"),
    [
        ("lanefs://disk.lane:/a/b", "disk.lane", "/a/b"),
        ("lanefs:///var/disk.lane:/a", "/var/disk.lane", "/a"),
        ("lanefs://disk.lane:", "disk.lane", "/"),
        ("lanefs://disk.lane:/", "disk.lane", "/"),
        ("lanefs://disk.lane:/a:/b", "disk.lane", "/a:/b"),
        ("lanefs:///a/b/", None, "/a/b"),
        ("lanefs://a", None, "/a"),
        ("/a/b", None, "/a/b"),
        ("a:/b", None, "/a:/b"),
        ("", None, "/"),
    ],
)
def test_urls(url: str, image: str | None, path: str) -> None:
    assert LaneFileSystem._strip_protocol(url) == path
    expected = {} if image is None else {"image": str(Path(image).absolute())}
    assert LaneFileSystem._get_kwargs_from_urls(url) == expected


def test_an_image_is_opened_once(image: Path) -> None:
    url = f"lanefs://{image}:/dir/file"
    with fsspec.open(f"{url}?", "wt", auto_mkdir=True) as file:  # a name like any other
        file.write("text")
    fs, path = fsspec.url_to_fs(url)
    assert fs.unstrip_protocol(path) == url and path == "/dir/file"
    assert fs.volume is lanefs.opened(image)
    assert fs.ls(f"lanefs://{image}:/dir", detail=False) == ["/dir/file?"]
    # One that the program has open is used as it is; closed, it is opened again.
    fs.close()
    with lanefs.Volume(image) as volume:
        assert fs.volume is volume and fs.cat("/dir/file?") == b"text"
        fs.close()
        assert not volume.closed
    assert fs.exists("/dir/file?") and not fs.volume.closed
    assert pickle.loads(pickle.dumps(fs)) is fs
    fs.close()


def test_what_is_no_volume(volume: lanefs.Volume, tmp_path: Path) -> None:
    for named in ({}, {"image": "x", "volume": volume}):
        with pytest.raises(ValueError, match="lanefs://IMAGE:/PATH"):
            LaneFileSystem(**named, skip_instance_cache=True)
    with pytest.raises(TypeError):
        LaneFileSystem(volume=volume, order="relaxed")
    with pytest.raises(ValueError):
        fsspec.open("lanefs://disk.lane").open()
    with pytest.raises(FileNotFoundError):
        fsspec.open(f"lanefs://{tmp_path}/missing.lane:/x").open()
    with pytest.raises(FileNotFoundError):
        fsspec.open("lanefs:///missing", volume=volume).open()
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(LaneFileSystem(volume=volume))
    made = f"lanefs://{tmp_path}/made.lane:/x"
    with fsspec.open(made, "wb", create_size="16M", order="relaxed", fsync=True) as file:
        file.write(b"x")
    fsspec.url_to_fs(made, create_size="16M", order="relaxed", fsync=True)[0].close()


def test_two_volumes_are_two_file_systems(volume: lanefs.Volume) -> None:
    with lanefs.Volume.in_memory("16M") as other:
        one, two = LaneFileSystem(volume=volume), LaneFileSystem(volume=other)
        assert one is not two and one.fsid != two.fsid
        assert LaneFileSystem(volume=volume) is one
        one.pipe("/f", b"one")
        assert not two.exists("/f")


def test_what_there_is(fs: LaneFileSystem) -> None:
    fs.makedirs("/a/b")
    fs.pipe({"/a/f": b"12345", "/a/b/g": b""})
    fs.symlink("f", "/a/link")
    fs.symlink("nowhere", "/a/broken")
    kinds = {info["name"]: (info["type"], info["islink"]) for info in fs.ls("/a")}
    assert kinds == {
        "/a/b": ("directory", False), "/a/f": ("file", False), "/a/link": ("file", True),
        "/a/broken": ("link", True),
    }  # fmt: skip
    assert fs.info("/a/link")["destination"] == "f" and fs.size("/a/link") == 5
    assert fs.find("/") == ["/a/b/g", "/a/broken", "/a/f", "/a/link"]
    assert fs.glob("/a/**/g") == ["/a/b/g"] and fs.du("/a/b") == 0
    assert fs.isfile("/a/link") and fs.islink("/a/link") and not fs.exists("/a/broken")
    assert fs.lexists("/a/broken") and fs.isdir("/a") and not fs.isdir("/a/f")
    assert fs.cat_file("/a/f", 1, 3) == b"23" and fs.cat_file("/a/f", -2) == b"45"
    assert fs.cat_file("/a/f", 3, 100) == b"45" and fs.cat_file("/a/f", 1, -1) == b"234"
    assert fs.cat_ranges(["/a/f"] * 2, [0, 2], [1, 4]) == [b"1", b"34"]
    before = fs.ukey("/a/f")
    fs.touch("/a/f", truncate=False)
    fs.volume.utime("/a/f", (time.time(), time.time() + 9))
    assert fs.ukey("/a/f") != before and fs.size("/a/f") == 5
    assert fs.modified("/a/f") >= fs.created("/a/b") and fs.modified("/a/f").tzinfo is not None
    with pytest.raises(FileNotFoundError):
        fs.ls("/missing")
    assert fs.ls("/a/f", detail=False) == ["/a/f"]


def test_changes(fs: LaneFileSystem) -> None:
    fs.mkdir("/a/b/c")
    with pytest.raises(FileExistsError):
        fs.mkdir("/a/b/c")
    with pytest.raises(FileNotFoundError):
        fs.mkdir("/x/y", create_parents=False)
    fs.pipe("/a/f", b"1")
    fs.mv("/a/f", "/a/b")
    fs.cp("/a", "/copy", recursive=True)
    assert fs.find("/copy") == ["/copy/b/f"]
    fs.link("/a/b/f", "/same")
    assert fs.info("/same")["nlink"] == 2
    with pytest.raises(IsADirectoryError):
        fs.rm("/copy")
    fs.rm("/c*", recursive=True)
    fs.rm(["/same", "/a/b/f"])
    assert fs.find("/") == []
    with pytest.raises(ValueError):
        fs.rm("/", recursive=True)
    with pytest.raises(OSError):
        fs.rmdir("/a")
    fs.rmdir("/a/b/c")
    fs.chmod("/a/b", 0o700)
    assert fs.info("/a/b")["mode"] == 0o40700
    with pytest.raises(FileExistsError):
        fs.touch("/f")
        fs.open("/f", "xb")


@pytest.mark.parametrize("fsync", [False, True])
def test_transactions(fsync: bool, volume: lanefs.Volume) -> None:
    """Files of a transaction appear together with its end, or not at all."""
    fs = LaneFileSystem(volume=volume, fsync=fsync)
    fs.pipe("/old", b"old")
    with fs.transaction:
        with fs.open("/new", "wb") as file:
            file.write(b"new")
        with fs.open("/old", "ab") as file:
            file.write(b" and new")
        with fs.open("/text", "w") as file:
            file.write("text")
        assert not fs.exists("/new") and fs.cat("/old") == b"old"
    assert fs.cat(["/new", "/old", "/text"]) == {
        "/new": b"new", "/old": b"old and new", "/text": b"text",
    }  # fmt: skip
    with pytest.raises(RuntimeError), fs.transaction:
        with fs.open("/old", "wb") as file:
            file.write(b"lost")
        raise RuntimeError
    assert fs.cat("/old") == b"old and new"
    assert sorted(volume.listdir()) == ["new", "old", "text"]


def test_what_is_closed_is_durable_if_that_is_asked(image: Path) -> None:
    code = """import fsspec, os, sys
with fsspec.open(f"lanefs://{sys.argv[1]}:/f", "wb", fsync=True) as f: f.write(b"durable")
os._exit(0)"""
    subprocess.run([sys.executable, "-c", code, image], check=True)
    with lanefs.Volume(image) as volume:
        assert volume.read_bytes("f") == b"durable"


def test_compression_and_caches(image: Path) -> None:
    url = f"lanefs://{image}:/f.gz"
    with fsspec.open(url, "wt", compression="infer") as file:
        file.write("text" * 1000)
    with fsspec.open(url, "rt", compression="infer") as file:
        assert file.read() == "text" * 1000
    assert fsspec.url_to_fs(url)[0].size("/f.gz") < 1000
    with fsspec.open(f"simplecache::{url}", "rb") as file:
        assert file.read(2) == b"\x1f\x8b"
    fsspec.url_to_fs(url)[0].close()


def frame(pandas: Any) -> Any:
    return pandas.DataFrame({"n": range(5000), "text": [f"row {i}" for i in range(5000)]})


def test_pandas(image: Path, volume: lanefs.Volume) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    data = frame(pandas)
    for base, options in ((f"lanefs://{image}:/", None), ("lanefs:///", {"volume": volume})):
        data.to_parquet(base + "f.parquet", storage_options=options)
        assert pandas.read_parquet(base + "f.parquet", storage_options=options).equals(data)
        data.to_csv(base + "f.csv.gz", index=False, storage_options=options)
        assert pandas.read_csv(base + "f.csv.gz", storage_options=options).equals(data)
        data.to_json(base + "f.json", storage_options=options)
        assert pandas.read_json(base + "f.json", storage_options=options).equals(data)
        data.to_pickle(base + "f.pickle", storage_options=options)
        assert pandas.read_pickle(base + "f.pickle", storage_options=options).equals(data)
    with pytest.raises(FileNotFoundError):
        pandas.read_parquet(f"lanefs://{image}:/missing.parquet")
    fsspec.filesystem("lanefs", image=image).close()


def test_pyarrow(fs: LaneFileSystem) -> None:
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import dataset, parquet

    table = pyarrow.Table.from_pandas(frame(pandas))
    parquet.write_table(table, "/one.parquet", filesystem=fs)
    assert parquet.read_table("/one.parquet", filesystem=fs).equals(table)
    assert parquet.read_table("/one.parquet", filesystem=fs, columns=["n"]).num_columns == 1
    table = table.append_column("part", [[i % 3 for i in range(5000)]])
    parquet.write_to_dataset(table, "/parts", partition_cols=["part"], filesystem=fs)
    found = dataset.dataset("/parts", filesystem=fs, partitioning="hive")
    assert found.count_rows() == 5000 and len(fs.ls("/parts")) == 3
    assert found.to_table(filter=dataset.field("part") == 1).num_rows == 1667


def test_dask(image: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frames = pytest.importorskip("dask.dataframe")
    data = frame(pandas)
    url = f"lanefs://{image}:/frames"
    frames.from_pandas(data, npartitions=3).to_parquet(url)
    found = frames.read_parquet(url)
    assert found.npartitions == 3 and found.n.sum().compute(scheduler="threads") == data.n.sum()
    fsspec.filesystem("lanefs", image=image).close()
