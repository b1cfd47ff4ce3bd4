// What LaneFS answers, as RocksDB has it.

#pragma once

#include <cstdint>
#include <string>

#include "rocksdb/io_status.h"

namespace lanefs {

// Returns a name as LaneFS takes it. One with a zero in it names nothing: "" is ENOENT everywhere.
inline const char* Name(const std::string& name) {
  return name.find('\0') == std::string::npos ? name.c_str() : "";
}

// Returns the status of a call that this thread has just made and that failed: `result` is what it
// returned, a negative errno; `doing` says what was tried.
rocksdb::IOStatus Failed(int64_t result, const char* doing, const std::string& name);

// Returns the status of a call: OK unless it is negative.
inline rocksdb::IOStatus Result(int64_t result, const char* doing, const std::string& name) {
  return result < 0 ? Failed(result, doing, name) : rocksdb::IOStatus::OK();
}

// Does as `Failed`, for questions about a name: what cannot be reached is NotFound.
rocksdb::IOStatus FailedToFind(int64_t result, const char* doing, const std::string& name);

}  // namespace lanefs
