#include "reads.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "status.h"

namespace lanefs {

using rocksdb::IOStatus;
using rocksdb::Slice;

IOStatus ReadFully(lanefs_file* file, const std::string& name, uint64_t offset, size_t n,
                   Slice* result, char* scratch) {
  size_t done = 0;
  while (done < n) {
    const int64_t got =
        lanefs_pread(file, scratch + done, n - done, static_cast<int64_t>(offset + done));
    if (got < 0) {
      *result = Slice(scratch, 0);
      return Failed(got, "reading", name);
    }
    if (got == 0) {
      break;
    }
    done += static_cast<size_t>(got);
  }
  *result = Slice(scratch, done);
  return IOStatus::OK();
}

namespace {

// Threads of the pool: as many requests are at the device at once, and the caller's.
constexpr unsigned kThreads = 4;

struct Pool {
  std::mutex mutex;
  // Told when something is queued, and when something is done.
  std::condition_variable queued;
  std::condition_variable done;
  std::deque<PooledRead*> queue;
  unsigned threads = 0;
};

// Never freed: its threads live as long as the process.
Pool& ThePool() {
  static Pool* const pool = new Pool;
  return *pool;
}

// What is read ahead goes through a buffer of this size, and is kept by the volume's cache alone.
constexpr size_t kPiece = 256 << 10;

// Brings what nobody waits for into memory, as far as it can be read.
void ReadAhead(const PooledRead& read) {
  const std::unique_ptr<char[]> scratch(new (std::nothrow) char[kPiece]);
  for (size_t done = 0; scratch != nullptr && done < read.request.len;) {
    const int64_t got =
        lanefs_pread(read.file->get(), scratch.get(), std::min(kPiece, read.request.len - done),
                     static_cast<int64_t>(read.request.offset + done));
    if (got <= 0) {
      break;  // Whoever reads it is told.
    }
    done += static_cast<size_t>(got);
  }
}

// Does a read that was taken off the queue. The lock is not held.
void Run(PooledRead* read) {
  rocksdb::FSReadRequest& request = read->request;
  request.status = ReadFully(read->file->get(), read->name, request.offset, request.len,
                             &request.result, request.scratch);
}

void Work() {
  Pool& pool = ThePool();
  std::unique_lock<std::mutex> lock(pool.mutex);
  for (;;) {
    pool.queued.wait(lock, [&] { return !pool.queue.empty(); });
    PooledRead* const read = pool.queue.front();
    pool.queue.pop_front();
    read->state = PooledRead::kRunning;
    lock.unlock();
    if (read->detached) {
      ReadAhead(*read);
      delete read;
      lock.lock();
      continue;
    }
    Run(read);
    lock.lock();
    read->state = PooledRead::kDone;
    pool.done.notify_all();
  }
}

// Takes a read off the queue, if it is there still.
bool Take(Pool* pool, PooledRead* read, PooledRead::State state) {
  if (read->state != PooledRead::kQueued) {
    return false;
  }
  pool->queue.erase(std::find(pool->queue.begin(), pool->queue.end(), read));
  read->state = state;
  return true;
}

}  // namespace

void Submit(PooledRead* const* reads, size_t count) {
  Pool& pool = ThePool();
  const std::lock_guard<std::mutex> lock(pool.mutex);
  for (; pool.threads < kThreads; ++pool.threads) {
    try {
      std::thread(Work).detach();
    } catch (const std::system_error&) {
      break;  // Whoever waits for a read does it by itself.
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (reads[i]->detached && pool.threads == 0) {
      delete reads[i];
      continue;
    }
    pool.queue.push_back(reads[i]);
    pool.queued.notify_one();
  }
}

void Finish(PooledRead* read) {
  Pool& pool = ThePool();
  std::unique_lock<std::mutex> lock(pool.mutex);
  if (Take(&pool, read, PooledRead::kRunning)) {
    lock.unlock();
    Run(read);
    lock.lock();
    read->state = PooledRead::kDone;
    return;
  }
  pool.done.wait(lock, [&] { return read->state != PooledRead::kRunning; });
}

void Abort(PooledRead* read) {
  Pool& pool = ThePool();
  std::unique_lock<std::mutex> lock(pool.mutex);
  if (!Take(&pool, read, PooledRead::kAborted)) {
    pool.done.wait(lock, [&] { return read->state != PooledRead::kRunning; });
    read->state = PooledRead::kAborted;
  }
  read->callback = nullptr;
}

}  // namespace lanefs
