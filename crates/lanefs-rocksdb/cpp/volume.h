// The volumes that this process has open for RocksDB. Each is opened once, by whoever names it
// first, and closed with the last file system and file of it.

#pragma once

#include <memory>
#include <string>

#include "c_api.h"
#include "rocksdb/status.h"

namespace lanefs {

// An open volume.
class Volume {
 public:
  // Opens the volume that a URI names, or finds it open.
  static rocksdb::Status Open(const std::string& uri, std::shared_ptr<Volume>* volume);

  Volume(const Volume&) = delete;
  Volume& operator=(const Volume&) = delete;
  ~Volume();

  lanefs_volume* get() const { return volume_; }

 private:
  explicit Volume(lanefs_volume* volume) : volume_(volume) {}

  lanefs_volume* const volume_;
};

// An open file or directory, and with it its volume.
class OpenFile {
 public:
  OpenFile(std::shared_ptr<Volume> volume, lanefs_file* file)
      : volume_(std::move(volume)), file_(file) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { Close(); }

  lanefs_file* get() const { return file_; }

  // Closes it now; returns what LaneFS says.
  int Close() {
    lanefs_file* const file = file_;
    file_ = nullptr;
    return lanefs_close(file);
  }

 private:
  const std::shared_ptr<Volume> volume_;
  lanefs_file* file_;
};

}  // namespace lanefs
