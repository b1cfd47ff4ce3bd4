# LaneFS as a plugin of RocksDB: `make ROCKSDB_PLUGINS=lanefs`. docs/ROCKSDB.md.
lanefs_SOURCES = file_system.cc files.cc reads.cc status.cc volume.cc
lanefs_HEADERS = lanefs_rocksdb.h
lanefs_FUNC = lanefs_rocksdb_register
lanefs_CXXFLAGS = $(shell pkg-config --cflags lanefs)
lanefs_LDFLAGS = $(shell pkg-config --libs lanefs)
