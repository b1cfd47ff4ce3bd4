#include "status.h"

#include <cerrno>

#include "c_api.h"

namespace lanefs {

using rocksdb::IOStatus;

IOStatus Failed(int64_t result, const char* doing, const std::string& name) {
  const std::string what = std::string(doing) + " " + name;
  const char* const words = lanefs_last_error();
  IOStatus status;
  switch (-result) {
    case ENOSPC:
      status = IOStatus::NoSpace(what, words);
      // RocksDB goes on by itself once there is space again.
      status.SetRetryable(true);
      break;
    case ENOENT:
      status = IOStatus::PathNotFound(what, words);
      break;
    case EROFS:
      // Opened for reading only, or a write of its log has failed: nothing is written any more.
      status = IOStatus::IOFenced(what, words);
      break;
    case EUCLEAN:
      status = IOStatus::Corruption(what, words);
      status.SetDataLoss(true);
      break;
    case EBUSY:
      status = IOStatus::Busy(what, words);
      break;
    case EINVAL:
      status = IOStatus::InvalidArgument(what, words);
      break;
    case EOPNOTSUPP:
      status = IOStatus::NotSupported(what, words);
      break;
    default:
      status = IOStatus::IOError(what, words);
  }
  return status;
}

IOStatus FailedToFind(int64_t result, const char* doing, const std::string& name) {
  switch (-result) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case ELOOP:
    case ENAMETOOLONG:
      return IOStatus::NotFound(std::string(doing) + " " + name, lanefs_last_error());
    default:
      return Failed(result, doing, name);
  }
}

}  // namespace lanefs
