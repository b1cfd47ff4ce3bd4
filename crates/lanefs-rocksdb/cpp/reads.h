// Reads that wait for the device together: threads that several requests are given to at once, for
// MultiRead, ReadAsync and Prefetch. What is in memory never comes here.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "rocksdb/file_system.h"
#include "volume.h"

namespace lanefs {

// What `ReadAsync` calls back: its request is const up to version 9 of RocksDB.
template <typename Method>
struct CallbackOf;
template <typename Callback>
struct CallbackOf<rocksdb::IOStatus (rocksdb::FSRandomAccessFile::*)(
    rocksdb::FSReadRequest&, const rocksdb::IOOptions&, Callback, void*, void**,
    rocksdb::IOHandleDeleter*, rocksdb::IODebugContext*)> {
  using Type = Callback;
};
using ReadCallback = CallbackOf<decltype(&rocksdb::FSRandomAccessFile::ReadAsync)>::Type;

// Reads `n` bytes at `offset` into `scratch`, fewer only at the end of the file.
rocksdb::IOStatus ReadFully(lanefs_file* file, const std::string& name, uint64_t offset, size_t n,
                            rocksdb::Slice* result, char* scratch);

// A read that a thread of the pool does, or the one that waits for it.
struct PooledRead {
  enum State { kQueued, kRunning, kDone, kAborted };

  std::shared_ptr<OpenFile> file;
  std::string name;
  // What is asked for, and the answer.
  rocksdb::FSReadRequest request;
  // Called by `Poll`, if it is there.
  ReadCallback callback;
  void* argument = nullptr;
  // Nobody waits for it, and it has no `scratch`: it only brings what it reads into memory, and
  // frees itself.
  bool detached = false;
  // Under the lock of the pool.
  State state = kQueued;
};

// Gives reads to the pool; the memory is the caller's until `Finish` or `Abort`.
void Submit(PooledRead* const* reads, size_t count);

// Returns when it is done. What no thread has begun is done by this one.
void Finish(PooledRead* read);

// Takes it back; one that runs is waited for. Its callback is not called.
void Abort(PooledRead* read);

}  // namespace lanefs
