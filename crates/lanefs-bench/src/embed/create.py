"""Makes files of 4 KiB: python create.py dir DIRECTORY|image IMAGE raw|open FILES. Prints the
seconds, and the processor time of this process, in which a LaneFS volume has its own threads: of a
first time, when memory is touched that nobody had, and of a second one after the files of the first
were removed."""

import os
import shutil
import sys
import time

kind, place, how, files = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
data = b"x" * 4096
flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL

if kind == "image":
    import lanefs

    volume = lanefs.Volume(place)
    base, mkdir, rmtree, flush = "/files", volume.mkdir, volume.rmtree, volume.sync
    open_file, open_raw = volume.open, volume.open_raw
else:
    base, mkdir, rmtree, flush = place + "/files", os.mkdir, shutil.rmtree, os.sync
    open_file = open


def by_open(name):
    """As most programs do it."""
    for i in range(files):
        with open_file(f"{name}/{i}", "wb") as file:
            file.write(data)


def by_descriptors(name, open=os.open, write=os.write, close=os.close):
    """By the functions of os."""
    for i in range(files):
        descriptor = open(f"{name}/{i}", flags, 0o644)
        write(descriptor, data)
        close(descriptor)


def by_raw_files(name):
    """By what stands in their place on a volume."""
    for i in range(files):
        file = open_raw(f"{name}/{i}", flags, 0o644)
        file.write(data)
        file.close()


work = by_open if how == "open" else by_raw_files if kind == "image" else by_descriptors
for turn in ("first", "again"):
    mkdir(base)
    flush()
    processor, begun = time.process_time(), time.perf_counter()
    work(base)
    seconds, processor = time.perf_counter() - begun, time.process_time() - processor
    print(turn, seconds, processor)
    rmtree(base)
    flush()
if kind == "image":
    volume.close()
