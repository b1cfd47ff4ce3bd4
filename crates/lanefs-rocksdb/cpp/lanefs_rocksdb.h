// LaneFS as a rocksdb::FileSystem: databases are files of a volume that this process has open.
// docs/ROCKSDB.md says how it is used, and what is promised.

#pragma once

#include <memory>
#include <string>

#include "rocksdb/file_system.h"
#include "rocksdb/status.h"
#include "rocksdb/utilities/object_registry.h"

#define LANEFS_ROCKSDB_EXPORT __attribute__((visibility("default")))

namespace lanefs {

// Opens the volume that a URI names, `lanefs://IMAGE[?OPTIONS]`, or finds it open in this process,
// and hands out a file system over it. The volume is closed with the last file system and file of
// it. Failures: InvalidArgument for a URI that cannot be read, Busy where another process has the
// volume, PathNotFound for a missing image; each says what to do.
LANEFS_ROCKSDB_EXPORT rocksdb::Status NewFileSystem(const std::string& uri,
                                                    std::shared_ptr<rocksdb::FileSystem>* fs);

}  // namespace lanefs

// Adds the factory of `lanefs://` to a library of RocksDB's; returns how many were added. It is
// what RocksDB calls where this is built as one of its plugins.
extern "C" LANEFS_ROCKSDB_EXPORT int lanefs_rocksdb_register(rocksdb::ObjectLibrary& library,
                                                             const std::string& argument);
