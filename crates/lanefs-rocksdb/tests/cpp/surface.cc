// Every call of the file system, asked what a program may ask: `surface IMAGE`.
// It says "surface done" at its end; whatever is answered otherwise than
// written here is told, and ends it.

#include <lanefs_rocksdb.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/file_system.h"
#include "rocksdb/options.h"
#include "rocksdb/utilities/backup_engine.h"
#include "rocksdb/utilities/checkpoint.h"

using namespace rocksdb;

namespace {

void Fail(int line, const char* what, const std::string& got) {
  std::fprintf(stderr, "line %d: %s: %s\n", line, what, got.c_str());
  std::exit(1);
}

// The status is OK.
#define OK(call)                              \
  do {                                        \
    const Status got_ = (call);               \
    if (!got_.ok()) {                         \
      Fail(__LINE__, #call, got_.ToString()); \
    }                                         \
  } while (0)

// The condition holds.
#define IS(condition)                              \
  do {                                             \
    if (!(condition)) {                            \
      Fail(__LINE__, #condition, "does not hold"); \
    }                                              \
  } while (0)

// The status is of the kind asked for, and its text has these words.
#define SAYS(call, kind, words)                                             \
  do {                                                                      \
    const Status got_ = (call);                                             \
    if (!got_.kind() || got_.ToString().find(words) == std::string::npos) { \
      Fail(__LINE__, #call, got_.ToString());                               \
    }                                                                       \
  } while (0)

const IOOptions kIo;
IODebugContext* const kNoDebug = nullptr;

using Fs = std::shared_ptr<FileSystem>;

std::shared_ptr<FileSystem> Open(const std::string& uri) {
  Fs fs;
  OK(FileSystem::CreateFromString(ConfigOptions(), uri, &fs));
  return fs;
}

void Write(const Fs& fs, const std::string& name, const std::string& content) {
  std::unique_ptr<FSWritableFile> file;
  OK(fs->NewWritableFile(name, FileOptions(), &file, kNoDebug));
  OK(file->Append(content, kIo, kNoDebug));
  OK(file->Close(kIo, kNoDebug));
}

std::string Read(const Fs& fs, const std::string& name) {
  std::string content;
  OK(ReadFileToString(fs.get(), name, &content));
  return content;
}

std::string Pattern(size_t bytes) {
  std::string content(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) {
    content[i] = static_cast<char>(i * 7 + i / 4096);
  }
  return content;
}

void Names(const Fs& fs) {
  OK(fs->CreateDir("/d", kIo, kNoDebug));
  SAYS(fs->CreateDir("/d", kIo, kNoDebug), IsIOError, "exists");
  OK(fs->CreateDirIfMissing("d/", kIo, kNoDebug));
  SAYS(fs->CreateDir("/no/such/parent", kIo, kNoDebug), IsPathNotFound, "/no/such/parent");
  Write(fs, "/d/f", "content");
  SAYS(fs->CreateDirIfMissing("/d/f", kIo, kNoDebug), IsIOError, "no directory");
  bool answer = false;
  OK(fs->IsDirectory("/d", kIo, &answer, kNoDebug));
  IS(answer);
  OK(fs->IsDirectory("/d/f", kIo, &answer, kNoDebug));
  IS(!answer);
  OK(fs->FileExists("/d/f", kIo, kNoDebug));
  SAYS(fs->FileExists("/d/g", kIo, kNoDebug), IsNotFound, "/d/g");
  SAYS(fs->FileExists("/d/f/g", kIo, kNoDebug), IsNotFound, "/d/f/g");
  SAYS(fs->FileExists(std::string("/d/f\0x", 6), kIo, kNoDebug), IsNotFound, "");

  OK(fs->LinkFile("/d/f", "/d/link", kIo, kNoDebug));
  SAYS(fs->LinkFile("/d/f", "/d/link", kIo, kNoDebug), IsIOError, "exists");
  uint64_t number = 0;
  OK(fs->NumFileLinks("/d/f", kIo, &number, kNoDebug));
  IS(number == 2);
  OK(fs->AreFilesSame("/d/f", "//d/link", kIo, &answer, kNoDebug));
  IS(answer);
  OK(fs->AreFilesSame("/d/f", "/d", kIo, &answer, kNoDebug));
  IS(!answer);
  OK(fs->RenameFile("/d/link", "/d/g", kIo, kNoDebug));
  SAYS(fs->RenameFile("/d/link", "/d/g", kIo, kNoDebug), IsPathNotFound, "/d/link to /d/g");
  OK(fs->GetFileSize("/d/g", kIo, &number, kNoDebug));
  IS(number == 7);
  OK(fs->GetFileModificationTime("/d/g", kIo, &number, kNoDebug));
  const uint64_t now = static_cast<uint64_t>(std::time(nullptr));
  IS(number + 100 > now && number < now + 100);
  OK(fs->Truncate("/d/g", 3, kIo, kNoDebug));
  IS(Read(fs, "/d/f") == "con");

  std::vector<std::string> names;
  OK(fs->GetChildren("/d", kIo, &names, kNoDebug));
  IS(std::set<std::string>(names.begin(), names.end()) == std::set<std::string>({"f", "g"}));
  IS(names.size() == 2);
  std::vector<Env::FileAttributes> all;
  OK(fs->GetChildrenFileAttributes("/d", kIo, &all, kNoDebug));
  IS(all.size() == 2 && all[0].size_bytes == 3);
  SAYS(fs->GetChildren("/none", kIo, &names, kNoDebug), IsNotFound, "/none");
  SAYS(fs->GetChildren("/d/f", kIo, &names, kNoDebug), IsNotFound, "/d/f");
  SAYS(fs->DeleteDir("/d", kIo, kNoDebug), IsIOError, "not empty");
  SAYS(fs->DeleteFile("/d", kIo, kNoDebug), IsIOError, "directory");

  std::unique_ptr<FSDirectory> dir;
  OK(fs->NewDirectory("/d", kIo, &dir, kNoDebug));
  OK(fs->DeleteFile("/d/f", kIo, kNoDebug));
  OK(dir->FsyncWithDirOptions(kIo, kNoDebug, DirFsyncOptions(DirFsyncOptions::kFileDeleted)));
  OK(dir->Fsync(kIo, kNoDebug));
  OK(dir->Close(kIo, kNoDebug));
  SAYS(fs->NewDirectory("/d/g", kIo, &dir, kNoDebug), IsIOError, "directory");
  SAYS(fs->NewDirectory("/none", kIo, &dir, kNoDebug), IsPathNotFound, "/none");
  OK(fs->DeleteFile("/d/g", kIo, kNoDebug));
  OK(fs->DeleteDir("/d", kIo, kNoDebug));
  SAYS(fs->DeleteFile("/d/g", kIo, kNoDebug), IsPathNotFound, "/d/g");

  std::string path;
  OK(fs->GetAbsolutePath("db", kIo, &path, kNoDebug));
  IS(path == "/db");
  OK(fs->GetTestDirectory(kIo, &path, kNoDebug));
  OK(fs->IsDirectory(path, kIo, &answer, kNoDebug));
  IS(answer);
  OK(fs->DeleteDir(path, kIo, kNoDebug));
  OK(fs->GetFreeSpace("/", kIo, &number, kNoDebug));
  IS(number > (16 << 20) && number < (256 << 20));
}

void Locks(const Fs& fs, const Fs& same) {
  FileLock* lock = nullptr;
  FileLock* other = nullptr;
  OK(fs->LockFile("/LOCK", kIo, &lock, kNoDebug));
  SAYS(fs->LockFile("/LOCK", kIo, &other, kNoDebug), IsIOError, "open in this process");
  SAYS(same->LockFile("/LOCK", kIo, &other, kNoDebug), IsIOError, "open in this process");
  IS(other == nullptr);
  OK(fs->UnlockFile(lock, kIo, kNoDebug));
  OK(same->LockFile("/LOCK", kIo, &lock, kNoDebug));
  OK(same->UnlockFile(lock, kIo, kNoDebug));
  SAYS(fs->LockFile("/none/LOCK", kIo, &lock, kNoDebug), IsPathNotFound, "/none/LOCK");
  OK(fs->DeleteFile("/LOCK", kIo, kNoDebug));
}

void Writing(const Fs& fs) {
  std::unique_ptr<FSWritableFile> file;
  const std::string content = Pattern(3 << 20);
  OK(fs->NewWritableFile("/w", FileOptions(), &file, kNoDebug));
  IS(!file->use_direct_io() && file->IsSyncThreadSafe());
  file->SetWriteLifeTimeHint(Env::WLTH_SHORT);
  IS(file->GetWriteLifeTimeHint() == Env::WLTH_SHORT);
  file->SetPreallocationBlockSize(1 << 20);
  uint64_t free = 0;
  uint64_t left = 0;
  OK(fs->GetFreeSpace("/", kIo, &free, kNoDebug));
  file->PrepareWrite(0, 2 << 20, kIo, kNoDebug);
  OK(fs->GetFreeSpace("/", kIo, &left, kNoDebug));
  IS(left + (2 << 20) <= free);
  DataVerificationInfo info;
  OK(file->Append(Slice(content.data(), 100), kIo, info, kNoDebug));
  OK(file->Append(Slice(content.data() + 100, 4996), kIo, kNoDebug));
  OK(file->Flush(kIo, kNoDebug));
  IS(file->GetFileSize(kIo, kNoDebug) == 5096);
  uint64_t size = 0;
  OK(fs->GetFileSize("/w", kIo, &size, kNoDebug));
  IS(size == 5096);
  OK(file->RangeSync(0, 5096, kIo, kNoDebug));
  OK(file->Sync(kIo, kNoDebug));
  OK(file->Fsync(kIo, kNoDebug));
  OK(file->InvalidateCache(0, 0));
  char id[64];
  char other_id[64];
  const size_t length = file->GetUniqueId(id, sizeof(id));
  IS(length > 10 && file->GetUniqueId(id, 5) == 0);
  OK(file->Close(kIo, kNoDebug));
  OK(fs->GetFreeSpace("/", kIo, &left, kNoDebug));
  IS(left + (1 << 20) > free);  // What was kept and not used came back.

  OK(fs->ReopenWritableFile("/w", FileOptions(), &file, kNoDebug));
  IS(file->GetFileSize(kIo, kNoDebug) == 5096);
  IS(file->GetUniqueId(other_id, sizeof(other_id)) == length);
  IS(std::memcmp(id, other_id, length) == 0);
  OK(file->Append(Slice(content.data() + 5096, content.size() - 5096), kIo, kNoDebug));
  OK(file->Close(kIo, kNoDebug));
  IS(Read(fs, "/w") == content);
  OK(fs->ReopenWritableFile("/new", FileOptions(), &file, kNoDebug));
  IS(file->GetFileSize(kIo, kNoDebug) == 0);
  IS(file->GetUniqueId(other_id, sizeof(other_id)) == length);
  IS(std::memcmp(id, other_id, length) != 0);
  file.reset();

  // Used again from its start, under another name.
  OK(fs->ReuseWritableFile("/again", "/w", FileOptions(), &file, kNoDebug));
  OK(file->Append("head", kIo, kNoDebug));
  OK(file->Close(kIo, kNoDebug));
  IS(Read(fs, "/again") == "head" + content.substr(4));
  SAYS(fs->ReuseWritableFile("/x", "/w", FileOptions(), &file, kNoDebug), IsPathNotFound, "/w");

  FileOptions direct;
  direct.use_direct_writes = true;
  OK(fs->NewWritableFile("/direct", direct, &file, kNoDebug));
  IS(file->use_direct_io() && file->GetRequiredBufferAlignment() == 4096);
  OK(file->PositionedAppend(Slice(content.data(), 8192), 0, kIo, kNoDebug));
  OK(file->PositionedAppend(Slice(content.data() + 4096, 8192), 4096, kIo, info, kNoDebug));
  OK(file->Truncate(10000, kIo, kNoDebug));
  IS(file->GetFileSize(kIo, kNoDebug) == 10000);
  OK(file->Close(kIo, kNoDebug));
  IS(Read(fs, "/direct") == content.substr(0, 10000));

  FileOptions mapped;
  mapped.use_mmap_writes = true;
  SAYS(fs->NewWritableFile("/m", mapped, &file, kNoDebug), IsNotSupported, "allow_mmap_writes");
  SAYS(fs->NewWritableFile("/none/f", FileOptions(), &file, kNoDebug), IsPathNotFound, "/none/f");
  IS(file == nullptr);

  std::unique_ptr<FSRandomRWFile> both;
  OK(fs->NewRandomRWFile("/both", FileOptions(), &both, kNoDebug));
  OK(both->Write(5000, "there", kIo, kNoDebug));
  OK(both->Write(0, "here", kIo, kNoDebug));
  OK(both->Flush(kIo, kNoDebug));
  OK(both->Sync(kIo, kNoDebug));
  OK(both->Fsync(kIo, kNoDebug));
  char scratch[100];
  Slice result;
  OK(both->Read(5000, 100, kIo, &result, scratch, kNoDebug));
  IS(result == "there");
  OK(both->Close(kIo, kNoDebug));
  std::unique_ptr<MemoryMappedFileBuffer> buffer;
  SAYS(fs->NewMemoryMappedFileBuffer("/both", &buffer), IsNotSupported, "cannot be mapped");
  for (const char* name : {"/again", "/new", "/direct", "/both"}) {
    OK(fs->DeleteFile(name, kIo, kNoDebug));
  }
}

// Requests of a MultiRead or of asynchronous reads, and what they must find.
struct Requests {
  explicit Requests(const std::string& content) {
    const std::vector<std::pair<uint64_t, size_t>> asked = {{0, 10},
                                                            {4000, 9000},
                                                            {1 << 20, 100000},
                                                            {content.size() - 5, 100},
                                                            {content.size(), 7},
                                                            {2 << 20, 4096}};
    for (const auto& [offset, length] : asked) {
      scratch.emplace_back(new char[length]);
      FSReadRequest request;
      request.offset = offset;
      request.len = length;
      request.scratch = scratch.back().get();
      all.push_back(request);
    }
  }
  void Check(const std::string& content) const {
    for (const FSReadRequest& request : all) {
      OK(request.status);
      const std::string expected =
          content.substr(std::min<size_t>(request.offset, content.size()), request.len);
      IS(request.result == expected);
    }
  }
  std::vector<std::unique_ptr<char[]>> scratch;
  std::vector<FSReadRequest> all;
};

// Asks for all at once, and polls what did not come at once; returns how many
// those were.
size_t ReadAsynchronously(const Fs& fs, FSRandomAccessFile* file, Requests* requests) {
  std::vector<void*> handles;
  std::vector<IOHandleDeleter> deleters;
  std::atomic<size_t> called{0};
  for (FSReadRequest& request : requests->all) {
    void* handle = nullptr;
    IOHandleDeleter deleter;
    const auto callback = [&called](const FSReadRequest& done, void* argument) {
      FSReadRequest* const asked = static_cast<FSReadRequest*>(argument);
      asked->result = done.result;
      asked->status = done.status;
      IS(done.result.empty() || done.result.data() == asked->scratch);
      ++called;
    };
    OK(file->ReadAsync(request, kIo, callback, &request, &handle, &deleter, kNoDebug));
    if (handle != nullptr) {
      handles.push_back(handle);
      deleters.push_back(deleter);
    }
  }
  IS(called + handles.size() == requests->all.size());
  OK(fs->Poll(handles, handles.size()));
  IS(called == requests->all.size());
  OK(fs->Poll(handles, handles.size()));
  IS(called == requests->all.size());
  for (size_t i = 0; i < handles.size(); ++i) {
    deleters[i](handles[i]);
  }
  return handles.size();
}

void Reading(const std::string& uri) {
  const std::string content = Pattern((5 << 20) + 123);
  Write(Open(uri), "/r", content);
  // Each on a volume that was just opened: nothing is in memory.
  for (const bool direct : {false, true}) {
    FileOptions options;
    options.use_direct_reads = direct;
    const auto fresh = [&](const std::function<void(const Fs&, FSRandomAccessFile*)>& f) {
      const Fs fs = Open(uri);
      std::unique_ptr<FSRandomAccessFile> file;
      OK(fs->NewRandomAccessFile("/r", options, &file, kNoDebug));
      IS(file->use_direct_io() == direct && file->GetRequiredBufferAlignment() == 4096);
      f(fs, file.get());
    };
    fresh([&](const Fs&, FSRandomAccessFile* file) {
      Requests requests(content);
      OK(file->MultiRead(requests.all.data(), requests.all.size(), kIo, kNoDebug));
      requests.Check(content);
      OK(file->MultiRead(requests.all.data(), requests.all.size(), kIo, kNoDebug));
      requests.Check(content);
      OK(file->MultiRead(requests.all.data(), 0, kIo, kNoDebug));
      // Without a place for what is read each request fails by itself.
      Requests nowhere(content);
      nowhere.all[0].scratch = nowhere.all[2].scratch = nullptr;
      OK(file->MultiRead(nowhere.all.data(), nowhere.all.size(), kIo, kNoDebug));
      SAYS(nowhere.all[0].status, IsIOError, "/r");
      SAYS(nowhere.all[2].status, IsIOError, "/r");
      OK(nowhere.all[1].status);
    });
    fresh([&](const Fs& fs, FSRandomAccessFile* file) {
      Requests requests(content);
      IS(ReadAsynchronously(fs, file, &requests) > 2);
      requests.Check(content);
      Requests again(content);
      IS(ReadAsynchronously(fs, file, &again) < requests.all.size());
      again.Check(content);
    });
    fresh([&](const Fs& fs, FSRandomAccessFile* file) {
      // What is aborted never calls back.
      Requests requests(content);
      std::vector<void*> handles;
      std::vector<IOHandleDeleter> deleters;
      for (FSReadRequest& request : requests.all) {
        void* handle = nullptr;
        IOHandleDeleter deleter;
        const auto callback = [](const FSReadRequest&, void* argument) {
          *static_cast<bool*>(argument) = true;
        };
        bool at_once = false;
        OK(file->ReadAsync(request, kIo, callback, &at_once, &handle, &deleter, kNoDebug));
        IS(at_once == (handle == nullptr));
        if (handle != nullptr) {
          handles.push_back(handle);
          deleters.push_back(deleter);
        }
      }
      OK(fs->AbortIO(handles));
      OK(fs->AbortIO(handles));
      for (size_t i = 0; i < handles.size(); ++i) {
        deleters[i](handles[i]);
      }
    });
    fresh([&](const Fs&, FSRandomAccessFile* file) {
      file->Hint(FSRandomAccessFile::kSequential);
      OK(file->Prefetch(1000, 2 << 20, kIo, kNoDebug));
      OK(file->Prefetch(content.size() - 10, 1 << 20, kIo, kNoDebug));
      OK(file->Prefetch(content.size() + 10, 4096, kIo, kNoDebug));
      std::vector<char> scratch(content.size() + 100);
      Slice result;
      OK(file->Read(0, scratch.size(), kIo, &result, scratch.data(), kNoDebug));
      IS(result == content);
      OK(file->Read(content.size(), 10, kIo, &result, scratch.data(), kNoDebug));
      IS(result.empty());
      OK(file->InvalidateCache(0, 0));
    });
  }
  const Fs fs = Open(uri);
  std::unique_ptr<FSSequentialFile> file;
  OK(fs->NewSequentialFile("/r", FileOptions(), &file, kNoDebug));
  std::vector<char> scratch(content.size());
  Slice result;
  OK(file->Read(100, kIo, &result, scratch.data(), kNoDebug));
  IS(result == content.substr(0, 100));
  OK(file->Skip(5000));
  OK(file->Read(200, kIo, &result, scratch.data(), kNoDebug));
  IS(result == content.substr(5100, 200));
  OK(file->PositionedRead(4096, 4096, kIo, &result, scratch.data(), kNoDebug));
  IS(result == content.substr(4096, 4096));
  OK(file->Skip(uint64_t{1} << 40));
  OK(file->Read(10, kIo, &result, scratch.data(), kNoDebug));
  IS(result.empty());
  SAYS(fs->NewSequentialFile("/none", FileOptions(), &file, kNoDebug), IsPathNotFound, "/none");
  std::unique_ptr<FSRandomAccessFile> random;
  FileOptions mapped;
  mapped.use_mmap_reads = true;
  SAYS(fs->NewRandomAccessFile("/r", mapped, &random, kNoDebug), IsNotSupported, "mapped");
  OK(fs->DeleteFile("/r", kIo, kNoDebug));
}

// A volume of which nothing is left: the error can be retried, and says what to
// do.
void Full(const Fs& fs) {
  std::unique_ptr<FSWritableFile> file;
  OK(fs->NewWritableFile("/full", FileOptions(), &file, kNoDebug));
  const std::string piece = Pattern(1 << 20);
  IOStatus status;
  for (int i = 0; i < 4096 && status.ok(); ++i) {
    status = file->Append(piece, kIo, kNoDebug);
  }
  IS(status.IsNoSpace() && status.GetRetryable());
  IS(status.ToString().find("/full") != std::string::npos);
  file.reset();
  OK(fs->DeleteFile("/full", kIo, kNoDebug));
  OK(fs->NewWritableFile("/full", FileOptions(), &file, kNoDebug));
  OK(file->Append(piece, kIo, kNoDebug));
  OK(file->Close(kIo, kNoDebug));
  OK(fs->DeleteFile("/full", kIo, kNoDebug));
}

void Refused(const std::string& image) {
  Fs fs;
  const auto opened = [&](const std::string& uri) {
    return FileSystem::CreateFromString(ConfigOptions(), uri, &fs);
  };
  SAYS(opened("lanefs://"), IsInvalidArgument, "no image is named");
  SAYS(opened("lanefs://?size=1G"), IsInvalidArgument, "no image is named");
  SAYS(opened("lanefs://" + image + ".none"), IsInvalidArgument, "size=1G");
  SAYS(opened("lanefs://" + image + ".none?size=lots"), IsInvalidArgument, "no size");
  SAYS(opened("lanefs://" + image + ".none?size=99999999T"), IsInvalidArgument, "no size");
  SAYS(opened("lanefs://" + image + "?mount="), IsInvalidArgument, "no directory");
  SAYS(opened("lanefs://" + image + ".none/x?size=64M"), IsInvalidArgument, "directory");
  SAYS(opened("lanefs:///etc/passwd"), IsInvalidArgument, "passwd");
  IS(fs == nullptr);
  // Of a volume that is not open: of one that is, the options are those of who
  // came first.
  SAYS(opened("lanefs://" + image + "?cache_size=lots"), IsInvalidArgument, "cache_size");
  SAYS(opened("lanefs://" + image + "?colour=blue"), IsInvalidArgument, "colour=blue");
  SAYS(lanefs::NewFileSystem("lane://" + image, &fs), IsInvalidArgument, "lanefs://IMAGE");

  // Read only: nothing is changed, and that is no error which goes away.
  fs = Open("lanefs://" + image + "?ro");
  SAYS(fs->CreateDir("/d", kIo, kNoDebug), IsIOFenced, "Read-only");
  std::unique_ptr<FSWritableFile> file;
  SAYS(fs->NewWritableFile("/f", FileOptions(), &file, kNoDebug), IsIOFenced, "/f");
}

// A database with its log, a checkpoint by links, a backup, and all of it found
// again.
void Database(const std::string& uri) {
  const Fs fs = Open(uri);
  const std::unique_ptr<Env> env = NewCompositeEnv(fs);
  Options options;
  options.env = env.get();
  options.create_if_missing = true;
  options.write_buffer_size = 256 << 10;
  options.recycle_log_file_num = 2;
  DB* opened = nullptr;
  OK(DB::Open(options, "/db", &opened));
  std::unique_ptr<DB> db(opened);
  SAYS(DB::Open(options, "/db", &opened), IsIOError, "open in this process");
  WriteOptions sync;
  sync.sync = true;
  for (int i = 0; i < 3000; ++i) {
    OK(db->Put(i % 100 == 0 ? sync : WriteOptions(), std::to_string(i), Pattern(500 + i % 50)));
  }
  OK(fs->FileExists("/db/LOG", kIo, kNoDebug));
  Checkpoint* made = nullptr;
  OK(Checkpoint::Create(db.get(), &made));
  const std::unique_ptr<Checkpoint> checkpoint(made);
  OK(checkpoint->CreateCheckpoint("/checkpoint"));
  BackupEngineOptions backup_options("/backup", env.get());
  BackupEngine* engine = nullptr;
  OK(BackupEngine::Open(backup_options, env.get(), &engine));
  const std::unique_ptr<BackupEngine> backup(engine);
  OK(backup->CreateNewBackup(db.get(), true));
  OK(backup->VerifyBackup(1, true));
  OK(db->Delete(WriteOptions(), "7"));
  OK(db->VerifyChecksum());
  db.reset();
  OK(backup->RestoreDBFromLatestBackup("/restored", "/restored"));
  for (const char* name : {"/db", "/checkpoint", "/restored"}) {
    OK(DB::OpenForReadOnly(options, name, &opened));
    db.reset(opened);
    std::string value;
    for (int i = 0; i < 3000; i += 7) {
      const Status found = db->Get(ReadOptions(), std::to_string(i), &value);
      if (i == 7 && name == std::string("/db")) {
        IS(found.IsNotFound());
      } else {
        OK(found);
        IS(value == Pattern(500 + i % 50));
      }
    }
    db.reset();
    OK(DestroyDB(name, options));
  }
}

// Threads that open, use and close file systems of one volume meet it once.
void Sharing(const std::string& uri) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&uri, t] {
      for (int i = 0; i < 10; ++i) {
        const Fs fs = Open(uri);
        const std::string name = "/shared-" + std::to_string(t);
        Write(fs, name, name);
        IS(Read(fs, name) == name);
        OK(fs->DeleteFile(name, kIo, kNoDebug));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Others see the files through a mount that this process serves, as long as the volume is open.
void Mounted(const std::string& uri, const std::string& dir) {
  const Fs fs = Open(uri + "&mount=" + dir);
  Write(fs, "/seen", "content");
  IS(std::system(("test $(cat " + dir + "/seen) = content && rm " + dir + "/seen").c_str()) == 0);
  SAYS(fs->FileExists("/seen", kIo, kNoDebug), IsNotFound, "/seen");
  // Whoever names it again finds it there.
  OK(Open(uri + "&mount=" + dir)->FileExists("/", kIo, kNoDebug));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: surface IMAGE [MOUNT]\n");
    return 2;
  }
  const std::string image = argv[1];
  const std::string uri = "lanefs://" + image + "?size=192M&cache_size=64M";
  {
    const Fs fs = Open(uri);
    // By another path.
    const size_t slash = image.rfind('/');
    const Fs same = Open("lanefs://" + image.substr(0, slash) + "/./" + image.substr(slash + 1));
    IS(fs->GetId() == uri && std::string(fs->Name()) == "LaneFS");
    Names(fs);
    Locks(fs, same);
    Writing(fs);
    // A file keeps its volume.
    std::unique_ptr<FSWritableFile> file;
    OK(same->NewWritableFile("/kept", FileOptions(), &file, kNoDebug));
    Full(fs);
  }
  Reading(uri);
  Database(uri);
  Sharing(uri);
  if (argc == 3) {
    Mounted(uri, argv[2]);
  }
  Refused(image);
  std::printf("surface done\n");
  return 0;
}
