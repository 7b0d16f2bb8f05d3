// Files of a database, whose manifest goes no further than its pool.

#pragma once

#include <rocksdb/env.h>

#include <memory>

#include "memtable.h"

namespace bristlecone {
namespace rocksdb {

// Makes an environment with the files of `env`, but for the manifest. Each record of that, by which
// RocksDB installs what a flush or a compaction wrote, is refused unless all that the pool was told is
// durable: which file a flush writes, and which memtables are in files. It is also refused when the pool
// has failed. Otherwise the next opening would replay what is in files.
std::shared_ptr<::rocksdb::Env> GuardManifest(::rocksdb::Env* env, const std::shared_ptr<Pool>& pool);

}  // namespace rocksdb
}  // namespace bristlecone
