// What an opening does with what the last process left.

#pragma once

#include <rocksdb/db.h>
#include <rocksdb/env.h>

#include <memory>
#include <string>
#include <vector>

#include "memtable.h"

namespace bristlecone {
namespace rocksdb {

// What a database's folder tells of its last pool, in a file of which RocksDB knows nothing. Without it
// a pool that is named by mistake would be taken, and the writes in the right one replayed over its own.
class LastPool {
 public:
  LastPool(::rocksdb::Env* env, const std::string& folder) : env_(env), folder_(folder) {}

  // Reads the file, if there is one.
  ::rocksdb::Status Read();
  // Returns whether the file is of the database in the folder. (One that was destroyed leaves its own.)
  bool IsOfFolder() const;

  bool Is(const std::string& identity, const std::string& pool) const {
    return identity == identity_ && pool == pool_;
  }
  bool IsOf(const std::string& identity) const { return identity == identity_; }
  const std::string& path() const { return path_; }

  // Writes the file durably, whole or not at all.
  ::rocksdb::Status Write(const std::string& identity, const std::string& pool, const std::string& path) const;

 private:
  std::string Path() const { return folder_ + "/BRISTLECONE_POOL"; }

  ::rocksdb::Env* const env_;
  const std::string folder_;
  std::string identity_;
  std::string pool_;
  std::string path_;
};

// Replays what the last process left, makes the new memtables count, and lets flushes and compactions
// go on (session.rs says how that is made atomic). `compacts` says which families are to compact.
::rocksdb::Status Recover(::rocksdb::DB* db, const std::shared_ptr<Pool>& pool, const PoolOptions& options,
                          const LastPool& last, const std::vector<::rocksdb::ColumnFamilyHandle*>& handles,
                          const std::vector<bool>& compacts);

}  // namespace rocksdb
}  // namespace bristlecone
