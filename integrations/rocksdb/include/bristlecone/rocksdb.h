// RocksDB with memtables in persistent memory: durable writes without a write-ahead log.
//
//   rocksdb::Options options;
//   options.create_if_missing = true;
//   rocksdb::DB* db;
//   rocksdb::Status s = bristlecone::rocksdb::Open(options, "/data/db", {"/mnt/pmem/db.pool"}, &db);
//
// A write is durable when it returns, as far as the pool's medium promises: through a power failure
// on persistent memory and on an ordinary disk, and through the end of the process on tmpfs.

#pragma once

#include <rocksdb/db.h>
#include <rocksdb/memtablerep.h>
#include <rocksdb/options.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bristlecone {
namespace rocksdb {

// Where memtables are.
struct PoolOptions {
  // The pool's file, which is made if there is none. It belongs to one database.
  std::string path;
  // Maximum number of bytes of the pool; 0 for as many as there is room for. Have at least twice the
  // bytes of all memtables: what an end of the process left is copied at the next opening.
  uint64_t max_bytes = 0;
  // The database goes on with another pool than its last one, and lacks what it has not flushed from that.
  // Otherwise such a pool, or none at the path, is refused. The pool must be new or hold no writes.
  bool new_pool = false;
};

// Opens a database whose memtables are in a pool, and replays what its last process wrote and did
// not flush. All writes are durable when they return, and none goes to RocksDB's log:
// WriteOptions::disableWAL, ::sync and ::rate_limiter_priority are ignored, and arena_block_size is. A
// batch is there after a crash wholly or not at all.
//
// Refused with NotSupported: DeleteRange, entities (PutEntity), user-defined timestamps, prepared
// transactions, NewDefaultReplayer, and merges to a column family without a merge operator; with
// InvalidArgument: unordered_write, enable_pipelined_write, inplace_update_support,
// experimental_mempurge_threshold, and writes to column families that were dropped. TransactionDB does
// not write through the database that it wraps: do not use it. If one writes while no other write is
// under way, that is found out, and the database fails.
//
// When the pool is full, or the disk refuses, writes fail with IOError and change nothing; if they
// had begun, the message says what became of them. Nothing flushes by itself then: call Flush. A
// damaged pool is Corruption.
::rocksdb::Status Open(const ::rocksdb::DBOptions& options, const std::string& name, const PoolOptions& pool,
                       const std::vector<::rocksdb::ColumnFamilyDescriptor>& families,
                       std::vector<::rocksdb::ColumnFamilyHandle*>* handles, ::rocksdb::DB** db);

// As above, with the default column family alone.
::rocksdb::Status Open(const ::rocksdb::Options& options, const std::string& name, const PoolOptions& pool,
                       ::rocksdb::DB** db);

// The index of a memtable.
enum class Index {
  // The LB+-Tree.
  kTree,
  // The divided skip list, which LB+-Tree's paper compares with.
  kSkipList,
};

// How memtables of a scratch pool are made.
struct ScratchOptions {
  // The pool's file, which must not exist. Its name is removed once it is open, so that its space is
  // free when the process ends, however it does.
  std::string path;
  uint64_t max_bytes = 0;
  Index index = Index::kTree;
  // The caller promises that all comparators are BytewiseComparator(), which is faster.
  bool bytewise = false;
};

// Makes a factory of memtables that are thrown away at the end, for databases that are opened
// without Open: their log is what makes writes durable. RocksDB's object registry makes these for
// "bristlecone" and "bristlecone:WORDS", where WORDS are of "bytewise" and "skiplist", with commas;
// the pool's file is that of the environment variable BRISTLECONE_ROCKSDB_POOL.
::rocksdb::Status NewScratchFactory(const ScratchOptions& options,
                                    std::shared_ptr<::rocksdb::MemTableRepFactory>* factory);

}  // namespace rocksdb
}  // namespace bristlecone
