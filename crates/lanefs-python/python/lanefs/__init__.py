r"""LaneFS, a multicore file system, in the process that uses it.

A volume lies in an image file or on a block device; no mount, no privilege and no system call is
needed for what is in memory.

    import lanefs

    lanefs.format("disk.lane", "1G")
    with lanefs.Volume("disk.lane") as volume:
        with volume.open("notes.txt", "a") as notes:
            notes.write("kept\n")
            lanefs.fsync(notes)  # content and name survive any crash from here on
        print(volume.listdir("/"))

`Volume` has the calls of `os`, and `open`; files are those of `io`. With fsspec installed, pandas,
pyarrow and dask read and write `lanefs://disk.lane:/path`.

All calls release the GIL and may be made by any thread. Failures are OSErrors of the errno, with
the message of LaneFS. The page docs/PYTHON.md has the rest: forks, threads, the end of the process,
and what survives a crash.
"""

from ._lanefs import DirEntry, File, ScanDir, __version__
from ._volume import Volume, fdatasync, format, fsync, opened

__all__ = [
    "DirEntry",
    "File",
    "ScanDir",
    "Volume",
    "__version__",
    "fdatasync",
    "format",
    "fsync",
    "opened",
]
