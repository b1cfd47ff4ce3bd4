#include "files.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "reads.h"
#include "status.h"

namespace lanefs {

using rocksdb::DataVerificationInfo;
using rocksdb::DirFsyncOptions;
using rocksdb::FSReadRequest;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

// Returns what distinguishes a file from all others of the volume, as long as it exists.
size_t UniqueId(const OpenFile& file, char* id, size_t max_size) {
  struct lanefs_stat stat;
  // Longer than a varint can be, and always as long.
  const size_t length = 2 * sizeof(uint64_t) + sizeof(uint32_t);
  if (max_size < length || lanefs_fstat(file.get(), &stat) < 0) {
    return 0;
  }
  const uint64_t kind = 0x6c616e656673;
  std::memcpy(id, &kind, sizeof(kind));
  std::memcpy(id + sizeof(kind), &stat.ino, sizeof(stat.ino));
  std::memcpy(id + 2 * sizeof(kind), &stat.generation, sizeof(stat.generation));
  return length;
}

IOStatus WriteFully(lanefs_file* file, const std::string& name, const Slice& data,
                    uint64_t offset) {
  size_t done = 0;
  while (done < data.size()) {
    // Fewer bytes than asked for where space runs out: the next call says so.
    const int64_t wrote = lanefs_pwrite(file, data.data() + done, data.size() - done,
                                        static_cast<int64_t>(offset + done));
    if (wrote < 0) {
      return Failed(wrote, "writing", name);
    }
    if (wrote == 0) {
      return IOStatus::IOError("writing " + name, "nothing was written");
    }
    done += static_cast<size_t>(wrote);
  }
  return IOStatus::OK();
}

}  // namespace

IOStatus SequentialFile::Read(size_t n, const IOOptions& /*options*/, Slice* result, char* scratch,
                              IODebugContext* /*dbg*/) {
  const IOStatus status = ReadFully(file_->get(), name_, at_, n, result, scratch);
  at_ += result->size();
  return status;
}

IOStatus SequentialFile::Skip(uint64_t n) {
  struct lanefs_stat stat;
  const int told = lanefs_fstat(file_->get(), &stat);
  if (told < 0) {
    return Failed(told, "skipping in", name_);
  }
  at_ += std::min(n, stat.size - std::min(at_, stat.size));
  return IOStatus::OK();
}

IOStatus SequentialFile::PositionedRead(uint64_t offset, size_t n, const IOOptions& /*options*/,
                                        Slice* result, char* scratch, IODebugContext* /*dbg*/) {
  return ReadFully(file_->get(), name_, offset, n, result, scratch);
}

// The cache is the volume's, for all of its files: it lets go of what was not used for long.
IOStatus SequentialFile::InvalidateCache(size_t /*offset*/, size_t /*length*/) {
  return IOStatus::OK();
}

IOStatus RandomAccessFile::Read(uint64_t offset, size_t n, const IOOptions& /*options*/,
                                Slice* result, char* scratch, IODebugContext* /*dbg*/) const {
  return ReadFully(file_->get(), name_, offset, n, result, scratch);
}

bool RandomAccessFile::ReadCached(FSReadRequest* request) const {
  const int64_t got = lanefs_pread_nowait(file_->get(), request->scratch, request->len,
                                          static_cast<int64_t>(request->offset));
  if (got < 0) {
    return false;
  }
  request->result = Slice(request->scratch, static_cast<size_t>(got));
  request->status = IOStatus::OK();
  return true;
}

IOStatus RandomAccessFile::MultiRead(FSReadRequest* requests, size_t count,
                                     const IOOptions& options, IODebugContext* dbg) {
  std::vector<PooledRead> reads;
  std::vector<size_t> missing;
  for (size_t i = 0; i < count; ++i) {
    if (!ReadCached(&requests[i])) {
      missing.push_back(i);
    }
  }
  if (missing.size() == 1) {
    FSReadRequest& only = requests[missing[0]];
    only.status = Read(only.offset, only.len, options, &only.result, only.scratch, dbg);
    return IOStatus::OK();
  }
  if (missing.empty()) {
    return IOStatus::OK();
  }
  reads.resize(missing.size());
  std::vector<PooledRead*> given;
  for (size_t i = 0; i < missing.size(); ++i) {
    reads[i].file = file_;
    reads[i].name = name_;
    reads[i].request.offset = requests[missing[i]].offset;
    reads[i].request.len = requests[missing[i]].len;
    reads[i].request.scratch = requests[missing[i]].scratch;
    given.push_back(&reads[i]);
  }
  Submit(given.data(), given.size());
  // From the end: the pool begins with the first.
  for (size_t i = missing.size(); i-- > 0;) {
    Finish(&reads[i]);
    requests[missing[i]].result = reads[i].request.result;
    requests[missing[i]].status = reads[i].request.status;
  }
  return IOStatus::OK();
}

IOStatus RandomAccessFile::ReadAsync(FSReadRequest& request, const IOOptions& /*options*/,
                                     ReadCallback callback, void* argument, void** handle,
                                     rocksdb::IOHandleDeleter* deleter, IODebugContext* /*dbg*/) {
  if (ReadCached(&request)) {
    callback(request, argument);
    return IOStatus::OK();
  }
  PooledRead* const read = new PooledRead;
  read->file = file_;
  read->name = name_;
  read->request.offset = request.offset;
  read->request.len = request.len;
  read->request.scratch = request.scratch;
  read->callback = std::move(callback);
  read->argument = argument;
  *handle = read;
  *deleter = [](void* done) { delete static_cast<PooledRead*>(done); };
  Submit(&read, 1);
  return IOStatus::OK();
}

IOStatus RandomAccessFile::Prefetch(uint64_t offset, size_t n, const IOOptions& /*options*/,
                                    IODebugContext* /*dbg*/) {
  char byte;
  const uint64_t end = offset + n;
  for (uint64_t at = offset; at < end; at += kAlignment - at % kAlignment) {
    const int64_t got = lanefs_pread_nowait(file_->get(), &byte, 1, static_cast<int64_t>(at));
    if (got == 0) {
      return IOStatus::OK();  // The end of the file.
    }
    if (got == -EAGAIN) {
      PooledRead* const read = new PooledRead;
      read->file = file_;
      read->name = name_;
      read->request.offset = at;
      read->request.len = end - at;
      read->request.scratch = nullptr;
      read->detached = true;
      Submit(&read, 1);
      return IOStatus::OK();
    }
    if (got < 0) {
      return Failed(got, "reading ahead in", name_);
    }
  }
  return IOStatus::OK();
}

size_t RandomAccessFile::GetUniqueId(char* id, size_t max_size) const {
  return UniqueId(*file_, id, max_size);
}

IOStatus RandomAccessFile::InvalidateCache(size_t /*offset*/, size_t /*length*/) {
  return IOStatus::OK();
}

WritableFile::~WritableFile() {
  if (file_->get() != nullptr) {
    Close(IOOptions(), nullptr).PermitUncheckedError();
  }
}

IOStatus WritableFile::Write(const Slice& data, uint64_t offset) {
  IOStatus status = WriteFully(file_->get(), name_, data, offset);
  if (status.ok()) {
    size_ = offset + data.size();
  }
  return status;
}

IOStatus WritableFile::Append(const Slice& data, const IOOptions& /*options*/,
                              IODebugContext* /*dbg*/) {
  return Write(data, size_);
}

IOStatus WritableFile::PositionedAppend(const Slice& data, uint64_t offset,
                                        const IOOptions& /*options*/, IODebugContext* /*dbg*/) {
  return Write(data, offset);
}

// LaneFS has checksums of its own, over every block from memory to the medium.
IOStatus WritableFile::PositionedAppend(const Slice& data, uint64_t offset,
                                        const IOOptions& /*options*/,
                                        const DataVerificationInfo& /*info*/,
                                        IODebugContext* /*dbg*/) {
  return Write(data, offset);
}

IOStatus WritableFile::Truncate(uint64_t size, const IOOptions& /*options*/,
                                IODebugContext* /*dbg*/) {
  const int cut = lanefs_ftruncate(file_->get(), static_cast<int64_t>(size));
  if (cut == 0) {
    size_ = size;
    allocated_ = 0;
  }
  return Result(cut, "truncating", name_);
}

IOStatus WritableFile::Close(const IOOptions& options, IODebugContext* dbg) {
  IOStatus status;
  if (allocated_ > size_) {
    // What was kept and not used is given back.
    status = Truncate(size_, options, dbg);
  }
  const int closed = file_->Close();
  return status.ok() ? Result(closed, "closing", name_) : status;
}

IOStatus WritableFile::Flush(const IOOptions& /*options*/, IODebugContext* /*dbg*/) {
  return IOStatus::OK();  // What `Append` has taken every reader sees.
}

IOStatus WritableFile::Sync(const IOOptions& /*options*/, IODebugContext* /*dbg*/) {
  return Result(lanefs_fdatasync(file_->get()), "syncing", name_);
}

IOStatus WritableFile::Fsync(const IOOptions& /*options*/, IODebugContext* /*dbg*/) {
  return Result(lanefs_fsync(file_->get()), "syncing", name_);
}

// Logs are SHORT: what is removed soon need not go to the device at all, unless it is synced. What
// goes there is put beside what lives as long. Kept as RocksDB's `WLTH_NOT_SET` and so on; LaneFS
// has the numbers of Linux, as they have.
void WritableFile::SetWriteLifeTimeHint(rocksdb::Env::WriteLifeTimeHint hint) {
  write_hint_ = hint;
  // It is a hint: nothing is to be done where it is not taken.
  (void)lanefs_write_hint(file_->get(), static_cast<int>(hint));
}

uint64_t WritableFile::GetFileSize(const IOOptions& /*options*/, IODebugContext* /*dbg*/) {
  return size_;
}

size_t WritableFile::GetUniqueId(char* id, size_t max_size) const {
  return UniqueId(*file_, id, max_size);
}

IOStatus WritableFile::InvalidateCache(size_t /*offset*/, size_t /*length*/) {
  return IOStatus::OK();
}

// A file that has grown by some MiB is written back by a thread of the volume, unasked.
IOStatus WritableFile::RangeSync(uint64_t /*offset*/, uint64_t /*n*/, const IOOptions& options,
                                 IODebugContext* dbg) {
  return strict_bytes_per_sync_ ? Sync(options, dbg) : IOStatus::OK();
}

IOStatus WritableFile::Allocate(uint64_t offset, uint64_t length, const IOOptions& /*options*/,
                                IODebugContext* /*dbg*/) {
  if (!allocates_) {
    return IOStatus::OK();
  }
  const int kept = lanefs_fallocate(file_->get(), keeps_size_ ? FALLOC_FL_KEEP_SIZE : 0,
                                    static_cast<int64_t>(offset), static_cast<int64_t>(length));
  if (kept == 0) {
    allocated_ = std::max(allocated_, offset + length);
  }
  return Result(kept, "keeping space for", name_);
}

IOStatus RandomRWFile::Write(uint64_t offset, const Slice& data, const IOOptions& /*options*/,
                             IODebugContext* /*dbg*/) {
  return WriteFully(file_->get(), name_, data, offset);
}

IOStatus RandomRWFile::Read(uint64_t offset, size_t n, const IOOptions& /*options*/, Slice* result,
                            char* scratch, IODebugContext* /*dbg*/) const {
  return ReadFully(file_->get(), name_, offset, n, result, scratch);
}

IOStatus RandomRWFile::Flush(const IOOptions& /*options*/, IODebugContext* /*dbg*/) {
  return IOStatus::OK();
}

IOStatus RandomRWFile::Sync(const IOOptions& /*options*/, IODebugContext* /*dbg*/) {
  return Result(lanefs_fdatasync(file_->get()), "syncing", name_);
}

IOStatus RandomRWFile::Fsync(const IOOptions& /*options*/, IODebugContext* /*dbg*/) {
  return Result(lanefs_fsync(file_->get()), "syncing", name_);
}

IOStatus RandomRWFile::Close(const IOOptions& /*options*/, IODebugContext* /*dbg*/) {
  return Result(file_->Close(), "closing", name_);
}

IOStatus Directory::Fsync(const IOOptions& /*options*/, IODebugContext* /*dbg*/) {
  return Result(lanefs_fsync(file_->get()), "syncing", name_);
}

IOStatus Directory::FsyncWithDirOptions(const IOOptions& options, IODebugContext* dbg,
                                        const DirFsyncOptions& reason) {
  if (reason.reason == DirFsyncOptions::kNewFileSynced && !options.force_dir_fsync) {
    return IOStatus::OK();  // The sync of a new file makes its name durable, too.
  }
  return Fsync(options, dbg);
}

IOStatus Directory::Close(const IOOptions& /*options*/, IODebugContext* /*dbg*/) {
  return Result(file_->Close(), "closing", name_);
}

size_t Directory::GetUniqueId(char* id, size_t max_size) const {
  return UniqueId(*file_, id, max_size);
}

}  // namespace lanefs
