#include "volume.h"

#include <cerrno>
#include <climits>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "rocksdb/io_status.h"
#include "status.h"

namespace lanefs {

using rocksdb::Status;

namespace {

constexpr char kScheme[] = "lanefs://";

// What a URI says.
struct Named {
  std::vector<std::string> images;
  // The size of images that are to be made if they are missing; 0: they are not made.
  uint64_t size = 0;
  // Where a mount of the volume is to be served meanwhile.
  std::string mount;
  // What the library takes: words with commas between.
  std::string options;
};

// Reads a number of bytes with a suffix K, M, G or T; 0 if it is none.
uint64_t Bytes(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const bool digit = !text.empty() && text[0] >= '0' && text[0] <= '9';
  const uint64_t number = digit ? std::strtoull(text.c_str(), &end, 10) : 0;
  if (number == 0 || errno != 0) {
    return 0;
  }
  unsigned shift = 0;
  const std::string suffix(end);
  if (!suffix.empty()) {
    const size_t place = std::string("KMGTkmgt").find(suffix[0]);
    if (place == std::string::npos || suffix.size() != 1) {
      return 0;
    }
    shift = static_cast<unsigned>(place % 4 + 1) * 10;
  }
  return number <= (UINT64_MAX >> shift) ? number << shift : 0;
}

// Calls `f` with the parts of a text between separators, but the empty ones.
template <typename F>
void ForParts(const std::string& text, const char* separators, F f) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(separators, at), text.size());
    if (end > at) {
      f(text.substr(at, end - at));
    }
    at = end + 1;
  }
}

Status Parse(const std::string& uri, Named* named) {
  const size_t scheme = sizeof(kScheme) - 1;
  if (uri.compare(0, scheme, kScheme) != 0 || uri.find('\0') != std::string::npos) {
    return Status::InvalidArgument(uri, "not of the form lanefs://IMAGE[?OPTIONS]");
  }
  const size_t query = std::min(uri.find('?'), uri.size());
  ForParts(uri.substr(scheme, query - scheme), ",",
           [&](std::string image) { named->images.push_back(std::move(image)); });
  if (named->images.empty()) {
    return Status::InvalidArgument(uri, "no image is named: lanefs://IMAGE[?OPTIONS]");
  }
  Status status;
  ForParts(query < uri.size() ? uri.substr(query + 1) : "", "&;", [&](const std::string& option) {
    const size_t equals = std::min(option.find('='), option.size());
    const std::string name = option.substr(0, equals);
    const std::string value = equals < option.size() ? option.substr(equals + 1) : "";
    if (name == "size") {
      named->size = Bytes(value);
      if (named->size == 0) {
        status = Status::InvalidArgument(uri, "size=" + value + ": no size, as 1G or 512M");
      }
    } else if (name == "mount") {
      named->mount = value;
      if (value.empty()) {
        status = Status::InvalidArgument(uri, "mount=DIR: no directory is named");
      }
    } else if (option.find(',') != std::string::npos) {
      status = Status::InvalidArgument(uri, option + ": options have & between");
    } else {
      named->options += (named->options.empty() ? "" : ",") + option;
    }
  });
  return status;
}

// The volumes, by the paths of their images. An entry is there while the volume is open or is being
// closed, so that nobody opens one that is; `changed` is told when one goes.
struct Table {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::weak_ptr<Volume>> open;
};

// Never freed: volumes may be closed by destructors of whatever object lives longest.
Table& TheTable() {
  static Table* const table = new Table;
  return *table;
}

// Makes durable what programs have written that end without closing their database: the process is
// the file system, and no kernel keeps what it leaves behind. It runs behind the destructors of
// static objects, which may write still.
__attribute__((destructor)) void SyncAll() {
  Table& table = TheTable();
  std::vector<std::pair<std::string, std::shared_ptr<Volume>>> all;
  {
    const std::lock_guard<std::mutex> lock(table.mutex);
    for (const auto& entry : table.open) {
      all.emplace_back(entry.first, entry.second.lock());
    }
  }
  for (const auto& [images, volume] : all) {
    if (volume != nullptr && lanefs_sync(volume->get()) < 0) {
      std::fprintf(stderr, "lanefs: %s: %s\n", images.c_str(), lanefs_last_error());
    }
  }
}

// Returns the name by which an image is known, whatever the path to it.
std::string Canonical(const std::string& image) {
  char path[PATH_MAX];
  return realpath(image.c_str(), path) != nullptr ? path : image;
}

// Makes the images of a volume that are missing.
Status Make(const Named& named, const std::vector<const char*>& images) {
  const int made = lanefs_format(images.data(), images.size(), named.size, nullptr);
  // Somebody else made it just now: it is theirs to open first.
  return made == 0 || made == -EEXIST ? Status::OK() : Failed(made, "making", named.images[0]);
}

Status OpenImages(const Named& named, lanefs_volume** volume) {
  std::vector<const char*> images;
  for (const std::string& image : named.images) {
    images.push_back(image.c_str());
  }
  const char* const options = named.options.empty() ? nullptr : named.options.c_str();
  int opened = lanefs_open_volume(images.data(), images.size(), options, volume);
  if (opened == -ENOENT && named.size > 0) {
    const Status made = Make(named, images);
    if (!made.ok()) {
      return made;
    }
    opened = lanefs_open_volume(images.data(), images.size(), options, volume);
  }
  if (opened == -ENOENT) {
    const std::string words = lanefs_last_error();
    return rocksdb::IOStatus::PathNotFound("opening " + named.images[0],
                                           words + ", or add size=1G to the options of the URI");
  }
  return opened < 0 ? Failed(opened, "opening", named.images[0]) : Status::OK();
}

}  // namespace

Volume::~Volume() {
  if (lanefs_close_volume(volume_) < 0) {
    std::fprintf(stderr, "lanefs: closing the volume: %s\n", lanefs_last_error());
  }
}

Status Volume::Open(const std::string& uri, std::shared_ptr<Volume>* volume) {
  volume->reset();
  Named named;
  Status status = Parse(uri, &named);
  if (!status.ok()) {
    return status;
  }
  Table& table = TheTable();
  std::unique_lock<std::mutex> lock(table.mutex);
  std::string key;
  for (const std::string& image : named.images) {
    key += Canonical(image) + ",";
  }
  for (auto found = table.open.find(key); found != table.open.end(); found = table.open.find(key)) {
    *volume = found->second.lock();
    if (*volume != nullptr) {
      break;
    }
    table.changed.wait(lock);
  }
  if (*volume == nullptr) {
    lanefs_volume* opened = nullptr;
    status = OpenImages(named, &opened);
    if (!status.ok()) {
      return status;
    }
    // Images that were made have another name than before.
    key.clear();
    for (const std::string& image : named.images) {
      key += Canonical(image) + ",";
    }
    const auto close = [key](Volume* last) {
      Table& all = TheTable();
      const std::lock_guard<std::mutex> held(all.mutex);
      delete last;
      all.open.erase(key);
      all.changed.notify_all();
    };
    *volume = std::shared_ptr<Volume>(new Volume(opened), close);
    table.open[key] = *volume;
  }
  if (!named.mount.empty()) {
    const int served = lanefs_serve_mount((*volume)->get(), named.mount.c_str());
    // Whoever came first has mounted it.
    if (served < 0 && served != -EBUSY) {
      status = Failed(served, "mounting at", named.mount);
      lock.unlock();
      volume->reset();
    }
  }
  return status;
}

}  // namespace lanefs
