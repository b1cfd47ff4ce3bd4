// The library for C. It has structures and functions of one name, as POSIX has `stat`; RocksDB,
// when this is built into it, would have none.

#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include <lanefs.h>
#pragma GCC diagnostic pop
