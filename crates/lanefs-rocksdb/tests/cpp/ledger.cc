// A database whose writer is killed. `ledger IMAGE write SYNCS`: puts records for ever, and says
// the number of each once it is durable; `SYNCS` is 1 where each is synced, and else only every so
// manieth is, which makes those before it durable, too. `ledger IMAGE check`: says the number of
// the last record, when all up to it are there and whole.

#include <lanefs_rocksdb.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/options.h"

using namespace rocksdb;

namespace {

std::string Key(long n) {
  char key[32];
  std::snprintf(key, sizeof(key), "%012ld", n);
  return key;
}

std::string Value(long n) {
  std::string value(100 + n * 37 % 3000, '\0');
  for (size_t i = 0; i < value.size(); ++i) {
    value[i] = static_cast<char>(n + i * 13);
  }
  return value;
}

void Ok(const Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::_Exit(1);
  }
}

// Returns the number of the last record.
long Last(DB* db) {
  const std::unique_ptr<Iterator> last(db->NewIterator(ReadOptions()));
  last->SeekToLast();
  Ok(last->status());
  return last->Valid() ? std::atol(last->key().ToString().c_str()) : 0;
}

[[noreturn]] void Write(DB* db, long syncs) {
  for (long n = Last(db) + 1;; ++n) {
    WriteOptions options;
    options.sync = n % syncs == 0;
    Ok(db->Put(options, Key(n), Value(n)));
    // Written over: what the old files had is gone with them.
    Ok(db->Put(WriteOptions(), "!over", Value(n)));
    if (options.sync) {
      std::printf("durable %ld\n", n);
      std::fflush(stdout);
    }
  }
}

int Check(DB* db) {
  const long last = Last(db);
  const std::unique_ptr<Iterator> all(db->NewIterator(ReadOptions()));
  long n = 0;
  for (all->Seek("0"); all->Valid(); all->Next()) {
    ++n;
    if (all->key() != Key(n) || all->value() != Value(n)) {
      std::fprintf(stderr, "record %ld is missing, or is not what was put\n", n);
      return 1;
    }
  }
  Ok(all->status());
  Ok(db->VerifyChecksum());
  std::printf("found %ld\n", n);
  return n == last ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: ledger IMAGE write SYNCS | ledger IMAGE check\n");
    return 2;
  }
  std::shared_ptr<FileSystem> fs;
  Ok(lanefs::NewFileSystem(std::string("lanefs://") + argv[1] + "?size=256M&cache_size=64M", &fs));
  const std::unique_ptr<Env> env = NewCompositeEnv(fs);
  Options options;
  options.env = env.get();
  options.create_if_missing = true;
  // Small ones, so that flushes and compactions are on their way whenever the kill comes.
  options.write_buffer_size = 64 << 10;
  options.target_file_size_base = 64 << 10;
  options.max_bytes_for_level_base = 256 << 10;
  options.max_background_jobs = 2;
  DB* opened = nullptr;
  Ok(DB::Open(options, "/db", &opened));
  const std::unique_ptr<DB> db(opened);
  if (std::strcmp(argv[2], "check") == 0) {
    return Check(db.get());
  }
  Write(db.get(), argc > 3 ? std::max(1L, std::atol(argv[3])) : 1);
}
