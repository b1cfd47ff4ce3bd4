// Files of a volume, as RocksDB uses them.

#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reads.h"
#include "rocksdb/file_system.h"
#include "volume.h"

namespace lanefs {

// The unit of O_DIRECT: what begins and ends at multiples of it goes past the volume's cache.
constexpr size_t kAlignment = 4096;

class SequentialFile : public rocksdb::FSSequentialFile {
 public:
  SequentialFile(std::shared_ptr<OpenFile> file, std::string name, bool direct)
      : file_(std::move(file)), name_(std::move(name)), direct_(direct) {}

  rocksdb::IOStatus Read(size_t n, const rocksdb::IOOptions& options, rocksdb::Slice* result,
                         char* scratch, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Skip(uint64_t n) override;
  bool use_direct_io() const override { return direct_; }
  size_t GetRequiredBufferAlignment() const override { return kAlignment; }
  rocksdb::IOStatus InvalidateCache(size_t offset, size_t length) override;
  rocksdb::IOStatus PositionedRead(uint64_t offset, size_t n, const rocksdb::IOOptions& options,
                                   rocksdb::Slice* result, char* scratch,
                                   rocksdb::IODebugContext* dbg) override;

 private:
  const std::shared_ptr<OpenFile> file_;
  const std::string name_;
  const bool direct_;
  uint64_t at_ = 0;
};

class RandomAccessFile : public rocksdb::FSRandomAccessFile {
 public:
  RandomAccessFile(std::shared_ptr<OpenFile> file, std::string name, bool direct)
      : file_(std::move(file)), name_(std::move(name)), direct_(direct) {}

  rocksdb::IOStatus Read(uint64_t offset, size_t n, const rocksdb::IOOptions& options,
                         rocksdb::Slice* result, char* scratch,
                         rocksdb::IODebugContext* dbg) const override;
  rocksdb::IOStatus Prefetch(uint64_t offset, size_t n, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count,
                              const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus ReadAsync(rocksdb::FSReadRequest& request, const rocksdb::IOOptions& options,
                              ReadCallback callback, void* argument, void** handle,
                              rocksdb::IOHandleDeleter* deleter,
                              rocksdb::IODebugContext* dbg) override;
  size_t GetUniqueId(char* id, size_t max_size) const override;
  // Without effect: LaneFS finds out by itself what is read in a row.
  void Hint(AccessPattern) override {}
  bool use_direct_io() const override { return direct_; }
  size_t GetRequiredBufferAlignment() const override { return kAlignment; }
  rocksdb::IOStatus InvalidateCache(size_t offset, size_t length) override;

 private:
  // Reads what is in memory; false if it is not, or cannot be read.
  bool ReadCached(rocksdb::FSReadRequest* request) const;

  const std::shared_ptr<OpenFile> file_;
  const std::string name_;
  const bool direct_;
};

class WritableFile : public rocksdb::FSWritableFile {
 public:
  // `size`: where the first `Append` goes.
  WritableFile(std::shared_ptr<OpenFile> file, std::string name,
               const rocksdb::FileOptions& options, uint64_t size)
      : FSWritableFile(options),
        file_(std::move(file)),
        name_(std::move(name)),
        direct_(options.use_direct_writes),
        allocates_(options.allow_fallocate),
        keeps_size_(options.fallocate_with_keep_size),
        size_(size) {}
  ~WritableFile() override;

  // The overloads with checksums hand on to these.
  using FSWritableFile::Append;
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus PositionedAppend(const rocksdb::Slice& data, uint64_t offset,
                                     const rocksdb::IOOptions& options,
                                     rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus PositionedAppend(const rocksdb::Slice& data, uint64_t offset,
                                     const rocksdb::IOOptions& options,
                                     const rocksdb::DataVerificationInfo& info,
                                     rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Truncate(uint64_t size, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Close(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Flush(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Sync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
  bool IsSyncThreadSafe() const override { return true; }
  bool use_direct_io() const override { return direct_; }
  size_t GetRequiredBufferAlignment() const override { return kAlignment; }
  void SetWriteLifeTimeHint(rocksdb::Env::WriteLifeTimeHint hint) override;
  uint64_t GetFileSize(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
  size_t GetUniqueId(char* id, size_t max_size) const override;
  rocksdb::IOStatus InvalidateCache(size_t offset, size_t length) override;
  rocksdb::IOStatus RangeSync(uint64_t offset, uint64_t n, const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Allocate(uint64_t offset, uint64_t length, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* dbg) override;

 private:
  rocksdb::IOStatus Write(const rocksdb::Slice& data, uint64_t offset);

  const std::shared_ptr<OpenFile> file_;
  const std::string name_;
  const bool direct_;
  const bool allocates_;
  const bool keeps_size_;
  uint64_t size_;
  // Where the space that is kept for the file ends.
  uint64_t allocated_ = 0;
};

class RandomRWFile : public rocksdb::FSRandomRWFile {
 public:
  RandomRWFile(std::shared_ptr<OpenFile> file, std::string name)
      : file_(std::move(file)), name_(std::move(name)) {}

  rocksdb::IOStatus Write(uint64_t offset, const rocksdb::Slice& data,
                          const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Read(uint64_t offset, size_t n, const rocksdb::IOOptions& options,
                         rocksdb::Slice* result, char* scratch,
                         rocksdb::IODebugContext* dbg) const override;
  rocksdb::IOStatus Flush(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Sync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Close(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;

 private:
  const std::shared_ptr<OpenFile> file_;
  const std::string name_;
};

class Directory : public rocksdb::FSDirectory {
 public:
  Directory(std::shared_ptr<OpenFile> file, std::string name)
      : file_(std::move(file)), name_(std::move(name)) {}

  rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus FsyncWithDirOptions(const rocksdb::IOOptions& options,
                                        rocksdb::IODebugContext* dbg,
                                        const rocksdb::DirFsyncOptions& reason) override;
  rocksdb::IOStatus Close(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
  size_t GetUniqueId(char* id, size_t max_size) const override;

 private:
  const std::shared_ptr<OpenFile> file_;
  const std::string name_;
};

}  // namespace lanefs
