#include "rocksdb/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "files.h"
#include "lanefs_rocksdb.h"
#include "reads.h"
#include "status.h"
#include "volume.h"

namespace lanefs {

using rocksdb::FileLock;
using rocksdb::FileOptions;
using rocksdb::FileSystem;
using rocksdb::FSDirectory;
using rocksdb::FSRandomAccessFile;
using rocksdb::FSRandomRWFile;
using rocksdb::FSSequentialFile;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::MemoryMappedFileBuffer;
using rocksdb::Status;

namespace {

// A lock on a file. It ends with the handle.
class Lock : public FileLock {
 public:
  explicit Lock(std::shared_ptr<OpenFile> file) : file_(std::move(file)) {}

 private:
  const std::shared_ptr<OpenFile> file_;
};

// A file system over a volume. Paths begin at the volume's root, with a `/` before or without.
class LaneFileSystem : public FileSystem {
 public:
  LaneFileSystem(std::string uri, std::shared_ptr<Volume> volume)
      : uri_(std::move(uri)), volume_(std::move(volume)) {}

  static const char* kClassName() { return "LaneFS"; }
  const char* Name() const override { return kClassName(); }
  // By this the same one can be made again.
  std::string GetId() const override { return uri_; }

  IOStatus NewSequentialFile(const std::string& name, const FileOptions& options,
                             std::unique_ptr<FSSequentialFile>* result,
                             IODebugContext* /*dbg*/) override {
    result->reset();
    if (options.use_mmap_reads) {
      return NoMaps(name);
    }
    std::shared_ptr<OpenFile> file;
    const int flags = O_RDONLY | (options.use_direct_reads ? O_DIRECT : 0);
    IOStatus status = Open(name, flags, "opening for reading", &file);
    if (status.ok()) {
      result->reset(new SequentialFile(std::move(file), name, options.use_direct_reads));
    }
    return status;
  }

  IOStatus NewRandomAccessFile(const std::string& name, const FileOptions& options,
                               std::unique_ptr<FSRandomAccessFile>* result,
                               IODebugContext* /*dbg*/) override {
    result->reset();
    if (options.use_mmap_reads) {
      return NoMaps(name);
    }
    std::shared_ptr<OpenFile> file;
    const int flags = O_RDONLY | (options.use_direct_reads ? O_DIRECT : 0);
    IOStatus status = Open(name, flags, "opening for reading", &file);
    if (status.ok()) {
      result->reset(new RandomAccessFile(std::move(file), name, options.use_direct_reads));
    }
    return status;
  }

  IOStatus NewWritableFile(const std::string& name, const FileOptions& options,
                           std::unique_ptr<FSWritableFile>* result,
                           IODebugContext* /*dbg*/) override {
    return Writable(name, O_CREAT | O_TRUNC, options, result);
  }

  IOStatus ReopenWritableFile(const std::string& name, const FileOptions& options,
                              std::unique_ptr<FSWritableFile>* result,
                              IODebugContext* /*dbg*/) override {
    return Writable(name, O_CREAT | O_APPEND, options, result);
  }

  // The old content is written over from its start, as logs are that are used again.
  IOStatus ReuseWritableFile(const std::string& name, const std::string& old_name,
                             const FileOptions& options, std::unique_ptr<FSWritableFile>* result,
                             IODebugContext* dbg) override {
    result->reset();
    const IOStatus status = RenameFile(old_name, name, options.io_options, dbg);
    return status.ok() ? Writable(name, 0, options, result) : status;
  }

  IOStatus NewRandomRWFile(const std::string& name, const FileOptions& options,
                           std::unique_ptr<FSRandomRWFile>* result,
                           IODebugContext* /*dbg*/) override {
    result->reset();
    if (options.use_mmap_reads || options.use_mmap_writes) {
      return NoMaps(name);
    }
    std::shared_ptr<OpenFile> file;
    IOStatus status = Open(name, O_RDWR | O_CREAT, "opening for reading and writing", &file);
    if (status.ok()) {
      result->reset(new RandomRWFile(std::move(file), name));
    }
    return status;
  }

  IOStatus NewMemoryMappedFileBuffer(const std::string& name,
                                     std::unique_ptr<MemoryMappedFileBuffer>* result) override {
    result->reset();
    return NoMaps(name);
  }

  IOStatus NewDirectory(const std::string& name, const IOOptions& /*options*/,
                        std::unique_ptr<FSDirectory>* result, IODebugContext* /*dbg*/) override {
    result->reset();
    std::shared_ptr<OpenFile> file;
    IOStatus status = Open(name, O_RDONLY | O_DIRECTORY, "opening the directory", &file);
    if (status.ok()) {
      result->reset(new Directory(std::move(file), name));
    }
    return status;
  }

  IOStatus FileExists(const std::string& name, const IOOptions& /*options*/,
                      IODebugContext* /*dbg*/) override {
    struct lanefs_stat stat;
    const int told = lanefs_stat(volume_->get(), lanefs::Name(name), &stat);
    return told < 0 ? FailedToFind(told, "looking for", name) : IOStatus::OK();
  }

  IOStatus GetChildren(const std::string& name, const IOOptions& /*options*/,
                       std::vector<std::string>* result, IODebugContext* /*dbg*/) override {
    result->clear();
    lanefs_dir* dir = nullptr;
    const int opened = lanefs_opendir(volume_->get(), lanefs::Name(name), &dir);
    if (opened < 0) {
      return FailedToFind(opened, "listing", name);
    }
    lanefs_dirent entry;
    int more;
    while ((more = lanefs_readdir(dir, &entry)) > 0) {
      result->emplace_back(entry.name, entry.length);
    }
    IOStatus status = Result(more, "listing", name);
    const int closed = lanefs_closedir(dir);
    return status.ok() ? Result(closed, "listing", name) : status;
  }

  IOStatus DeleteFile(const std::string& name, const IOOptions& /*options*/,
                      IODebugContext* /*dbg*/) override {
    return Result(lanefs_unlink(volume_->get(), lanefs::Name(name)), "deleting", name);
  }

  IOStatus Truncate(const std::string& name, size_t size, const IOOptions& /*options*/,
                    IODebugContext* /*dbg*/) override {
    const int cut = lanefs_truncate(volume_->get(), lanefs::Name(name), static_cast<int64_t>(size));
    return Result(cut, "truncating", name);
  }

  IOStatus CreateDir(const std::string& name, const IOOptions& /*options*/,
                     IODebugContext* /*dbg*/) override {
    return Result(lanefs_mkdir(volume_->get(), lanefs::Name(name), 0755), "making", name);
  }

  IOStatus CreateDirIfMissing(const std::string& name, const IOOptions& options,
                              IODebugContext* dbg) override {
    const int made = lanefs_mkdir(volume_->get(), lanefs::Name(name), 0755);
    if (made != -EEXIST) {
      return Result(made, "making", name);
    }
    bool is_dir = false;
    IOStatus status = IsDirectory(name, options, &is_dir, dbg);
    if (status.ok() && !is_dir) {
      return IOStatus::IOError("making " + name, "it exists, and is no directory");
    }
    return status;
  }

  IOStatus DeleteDir(const std::string& name, const IOOptions& /*options*/,
                     IODebugContext* /*dbg*/) override {
    return Result(lanefs_rmdir(volume_->get(), lanefs::Name(name)), "removing", name);
  }

  IOStatus GetFileSize(const std::string& name, const IOOptions& /*options*/, uint64_t* size,
                       IODebugContext* /*dbg*/) override {
    struct lanefs_stat stat;
    *size = 0;
    IOStatus status = Stat(name, &stat);
    if (status.ok()) {
      *size = stat.size;
    }
    return status;
  }

  IOStatus GetFileModificationTime(const std::string& name, const IOOptions& /*options*/,
                                   uint64_t* seconds, IODebugContext* /*dbg*/) override {
    struct lanefs_stat stat;
    IOStatus status = Stat(name, &stat);
    if (status.ok()) {
      *seconds = stat.mtime.sec > 0 ? static_cast<uint64_t>(stat.mtime.sec) : 0;
    }
    return status;
  }

  IOStatus IsDirectory(const std::string& name, const IOOptions& /*options*/, bool* is_dir,
                       IODebugContext* /*dbg*/) override {
    struct lanefs_stat stat;
    IOStatus status = Stat(name, &stat);
    if (status.ok() && is_dir != nullptr) {
      *is_dir = S_ISDIR(stat.mode);
    }
    return status;
  }

  IOStatus RenameFile(const std::string& old_name, const std::string& name,
                      const IOOptions& /*options*/, IODebugContext* /*dbg*/) override {
    const int renamed =
        lanefs_rename(volume_->get(), lanefs::Name(old_name), lanefs::Name(name), 0);
    return Result(renamed, "renaming", old_name + " to " + name);
  }

  IOStatus LinkFile(const std::string& old_name, const std::string& name,
                    const IOOptions& /*options*/, IODebugContext* /*dbg*/) override {
    const int linked = lanefs_link(volume_->get(), lanefs::Name(old_name), lanefs::Name(name));
    return Result(linked, "linking", old_name + " as " + name);
  }

  IOStatus NumFileLinks(const std::string& name, const IOOptions& /*options*/, uint64_t* count,
                        IODebugContext* /*dbg*/) override {
    struct lanefs_stat stat;
    IOStatus status = Stat(name, &stat);
    if (status.ok()) {
      *count = stat.nlink;
    }
    return status;
  }

  IOStatus AreFilesSame(const std::string& first, const std::string& second,
                        const IOOptions& /*options*/, bool* same,
                        IODebugContext* /*dbg*/) override {
    struct lanefs_stat one;
    struct lanefs_stat other;
    IOStatus status = Stat(first, &one);
    if (status.ok()) {
      status = Stat(second, &other);
    }
    if (status.ok()) {
      *same = one.ino == other.ino && one.generation == other.generation;
    }
    return status;
  }

  IOStatus LockFile(const std::string& name, const IOOptions& /*options*/, FileLock** lock,
                    IODebugContext* /*dbg*/) override {
    *lock = nullptr;
    std::shared_ptr<OpenFile> file;
    IOStatus status = Open(name, O_RDWR | O_CREAT, "opening the lock", &file);
    if (!status.ok()) {
      return status;
    }
    const int locked = lanefs_flock(file->get(), LANEFS_LOCK_EXCLUSIVE, 0);
    if (locked == -EWOULDBLOCK) {
      return IOStatus::IOError("lock " + name,
                               "held already: the database is open in this process");
    }
    if (locked == 0) {
      *lock = new Lock(std::move(file));
    }
    return Result(locked, "locking", name);
  }

  IOStatus UnlockFile(FileLock* lock, const IOOptions& /*options*/,
                      IODebugContext* /*dbg*/) override {
    delete static_cast<Lock*>(lock);
    return IOStatus::OK();
  }

  IOStatus GetTestDirectory(const IOOptions& options, std::string* path,
                            IODebugContext* dbg) override {
    *path = "/rocksdbtest-" + std::to_string(geteuid());
    return CreateDirIfMissing(*path, options, dbg);
  }

  IOStatus GetAbsolutePath(const std::string& path, const IOOptions& /*options*/,
                           std::string* result, IODebugContext* /*dbg*/) override {
    *result = !path.empty() && path[0] == '/' ? path : "/" + path;
    return IOStatus::OK();
  }

  IOStatus GetFreeSpace(const std::string& path, const IOOptions& /*options*/, uint64_t* free,
                        IODebugContext* /*dbg*/) override {
    struct lanefs_statfs sizes;
    const int told = lanefs_statfs(volume_->get(), &sizes);
    if (told == 0) {
      *free = sizes.free * 4096;
    }
    return Result(told, "asking for the space of", path);
  }

  // Returns once the callbacks of all were called. How many there must be is at least so many.
  IOStatus Poll(std::vector<void*>& handles, size_t /*min_completions*/) override {
    for (void* const handle : handles) {
      PooledRead* const read = static_cast<PooledRead*>(handle);
      if (read == nullptr) {
        continue;
      }
      Finish(read);
      if (read->callback) {
        // Once, however often it is asked for.
        const auto callback = std::move(read->callback);
        read->callback = nullptr;
        callback(read->request, read->argument);
      }
    }
    return IOStatus::OK();
  }

  IOStatus AbortIO(std::vector<void*>& handles) override {
    for (void* const handle : handles) {
      if (handle != nullptr) {
        Abort(static_cast<PooledRead*>(handle));
      }
    }
    return IOStatus::OK();
  }

 private:
  static IOStatus NoMaps(const std::string& name) {
    return IOStatus::NotSupported(
        "opening " + name,
        "files of a LaneFS volume cannot be mapped: switch allow_mmap_reads and "
        "allow_mmap_writes off");
  }

  IOStatus Open(const std::string& name, int flags, const char* doing,
                std::shared_ptr<OpenFile>* file) const {
    lanefs_file* opened = nullptr;
    const char* const path = lanefs::Name(name);
    int result = lanefs_open(volume_->get(), path, flags | O_NOATIME, 0644, &opened);
    if (result == -EPERM) {
      // Another user's file.
      result = lanefs_open(volume_->get(), path, flags, 0644, &opened);
    }
    if (result < 0) {
      return Failed(result, doing, name);
    }
    *file = std::make_shared<OpenFile>(volume_, opened);
    return IOStatus::OK();
  }

  // Opens a file that is written from its start, or from its end (O_APPEND, which does not stay:
  // positions are given).
  IOStatus Writable(const std::string& name, int flags, const FileOptions& options,
                    std::unique_ptr<FSWritableFile>* result) {
    result->reset();
    if (options.use_mmap_writes) {
      return NoMaps(name);
    }
    std::shared_ptr<OpenFile> file;
    const int direct = options.use_direct_writes ? O_DIRECT : 0;
    IOStatus status =
        Open(name, O_WRONLY | (flags & ~O_APPEND) | direct, "opening for writing", &file);
    uint64_t at = 0;
    if (status.ok() && (flags & O_APPEND) != 0) {
      struct lanefs_stat stat;
      status = Result(lanefs_fstat(file->get(), &stat), "opening for writing", name);
      at = status.ok() ? stat.size : 0;
    }
    if (status.ok()) {
      result->reset(new WritableFile(std::move(file), name, options, at));
    }
    return status;
  }

  IOStatus Stat(const std::string& name, struct lanefs_stat* stat) const {
    return Result(lanefs_stat(volume_->get(), lanefs::Name(name), stat), "looking at", name);
  }

  const std::string uri_;
  const std::shared_ptr<Volume> volume_;
};

}  // namespace

Status NewFileSystem(const std::string& uri, std::shared_ptr<FileSystem>* fs) {
  std::shared_ptr<Volume> volume;
  Status status = Volume::Open(uri, &volume);
  fs->reset();
  if (status.ok()) {
    *fs = std::make_shared<LaneFileSystem>(uri, std::move(volume));
  }
  return status;
}

}  // namespace lanefs

int lanefs_rocksdb_register(rocksdb::ObjectLibrary& library, const std::string& /*argument*/) {
  library.AddFactory<rocksdb::FileSystem>(
      rocksdb::ObjectLibrary::PatternEntry("lanefs", false).AddSeparator("://", false),
      [](const std::string& uri, std::unique_ptr<rocksdb::FileSystem>* guard,
         std::string* message) -> rocksdb::FileSystem* {
        std::shared_ptr<lanefs::Volume> volume;
        const rocksdb::Status status = lanefs::Volume::Open(uri, &volume);
        guard->reset();
        if (status.ok()) {
          guard->reset(new lanefs::LaneFileSystem(uri, std::move(volume)));
        } else {
          *message = status.ToString();
        }
        return guard->get();
      });
  return 1;
}
