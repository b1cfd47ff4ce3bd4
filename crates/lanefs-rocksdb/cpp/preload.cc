// What makes the shared library register itself when it is loaded, by LD_PRELOAD or by a program
// that is linked to it. A plugin that is built into RocksDB does without.

#include <cstdio>

#include "lanefs_rocksdb.h"
#include "rocksdb/version.h"

namespace {

// The classes of RocksDB change from one minor version to the next, and with them what a call of a
// virtual function means: with another version than that of the headers nothing is registered.
const bool registered = [] {
  const std::string built = std::to_string(ROCKSDB_MAJOR) + "." + std::to_string(ROCKSDB_MINOR);
  const std::string found = rocksdb::GetRocksVersionAsString(false);
  if (found != built) {
    std::fprintf(stderr,
                 "lanefs: librocksdb_lanefs.so was built for RocksDB %s, and this is RocksDB %s: "
                 "lanefs:// is not registered; build it with the headers of %s (docs/ROCKSDB.md)\n",
                 built.c_str(), found.c_str(), found.c_str());
    return false;
  }
  lanefs_rocksdb_register(*rocksdb::ObjectLibrary::Default(), "");
  return true;
}();

}  // namespace
