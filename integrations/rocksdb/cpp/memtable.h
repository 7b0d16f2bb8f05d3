// Memtables in a pool, as RocksDB wants them.

#pragma once

#include <rocksdb/memtablerep.h>
#include <rocksdb/status.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bristlecone/rocksdb.h"
#include "bristlecone_rocksdb.h"

namespace bristlecone {
namespace rocksdb {

// Returns the status that stands for a fault.
::rocksdb::Status ToStatus(const bristlecone_fault& fault);

// Returns the status of a batch of which some entries were inserted, and others were not.
::rocksdb::Status HalfWay(const ::rocksdb::Status& reason);

inline bristlecone_bytes ToBytes(const ::rocksdb::Slice& slice) {
  return {reinterpret_cast<const uint8_t*>(slice.data()), slice.size()};
}

// A pool with the memtables of one database. Thread-safe.
class Pool {
 public:
  static ::rocksdb::Status Open(const std::string& path, uint64_t max_bytes, bool scratch, bool must_exist,
                                std::shared_ptr<Pool>* pool);
  ~Pool() { bristlecone_session_close(session_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const bristlecone_session* session() const { return session_; }

  // Makes all that was inserted durable, and all that was noted.
  ::rocksdb::Status Commit();
  // Makes sure that there is room for a write of so many bytes, and for a new memtable of each of these
  // column families.
  ::rocksdb::Status MakeRoom(uint64_t bytes, const std::vector<uint32_t>& families) const;
  // Returns what tells the pool from others, in hexadecimal digits.
  std::string Id() const;

  // Notes a fault after which no write can be durable any more, nor may anything more get into the
  // database's files: the next opening replays what the pool has.
  void Fail(const ::rocksdb::Status& status);
  void Fail(const bristlecone_fault& fault);
  // Notes a fault after which no write is done any more.
  void Refuse(const ::rocksdb::Status& status);
  // Returns OK, or why no write is done any more.
  ::rocksdb::Status Failed() const;
  // Returns OK, or why nothing more may get into the database's files.
  ::rocksdb::Status Ended() const;

  // Notes that entries of a memtable are in DRAM, because the pool had no room for them; or that
  // these have been flushed. If one is of a batch, that has failed half-way.
  void Spilled(const ::rocksdb::Status& reason);
  void SpillFlushed() { spills_.fetch_sub(1); }
  // Returns OK, or why entries are in DRAM.
  ::rocksdb::Status Spills() const;

  // Until the writes of the last process are replayed, memtables claim to be empty, so that RocksDB
  // does not flush them.
  void SetReplaying(bool replaying) { replaying_.store(replaying, std::memory_order_release); }
  bool replaying() const { return replaying_.load(std::memory_order_acquire); }
  // Notes that RocksDB switches a memtable.
  void Switched(bool empty);
  bool switched_early() const { return switched_early_.load(); }

  // From here on, all writes are between BeginWrite and EndWrite.
  void SetGuarded() { guarded_.store(true, std::memory_order_release); }
  void BeginWrite() { writers_.fetch_add(1, std::memory_order_relaxed); }
  void EndWrite() { writers_.fetch_sub(1, std::memory_order_relaxed); }
  // Notes an entry that is to be written.
  void Allocating();

 private:
  explicit Pool(bristlecone_session* session) : session_(session) {}

  bristlecone_session* const session_;
  std::atomic<bool> replaying_{false};
  std::atomic<bool> switched_early_{false};
  std::atomic<bool> guarded_{false};
  std::atomic<int> writers_{0};
  std::atomic<int> spills_{0};
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> has_ended_{false};
  mutable std::mutex mutex_;
  ::rocksdb::Status failed_;
  ::rocksdb::Status spill_reason_;
};

// Makes memtables. See ScratchOptions for `index` and `bytewise`.
class Factory : public ::rocksdb::MemTableRepFactory {
 public:
  Factory(std::shared_ptr<Pool> pool, Index index, bool bytewise)
      : pool_(std::move(pool)), index_(index), bytewise_(bytewise) {}

  const char* Name() const override { return "bristlecone"; }
  ::rocksdb::MemTableRep* CreateMemTableRep(const ::rocksdb::MemTableRep::KeyComparator& comparator,
                                            ::rocksdb::Allocator* allocator,
                                            const ::rocksdb::SliceTransform* transform,
                                            ::rocksdb::Logger* logger) override {
    return CreateMemTableRep(comparator, allocator, transform, logger, 0);
  }
  ::rocksdb::MemTableRep* CreateMemTableRep(const ::rocksdb::MemTableRep::KeyComparator& comparator,
                                            ::rocksdb::Allocator* allocator,
                                            const ::rocksdb::SliceTransform* transform,
                                            ::rocksdb::Logger* logger, uint32_t family) override;
  bool IsInsertConcurrentlySupported() const override { return true; }
  bool CanHandleDuplicatedKey() const override { return true; }

 private:
  const std::shared_ptr<Pool> pool_;
  const Index index_;
  const bool bytewise_;
};

// Notes that this thread is about to flush memtables of a column family, which it then asks for
// iterators.
void BeginFlush(const Pool* pool, uint32_t family, const std::string& name);
// Notes durably, in the memtables of the column family of this name that this thread has asked since,
// which file it is about to make of them.
void NoteFlush(Pool* pool, const std::string& name, uint64_t file);

}  // namespace rocksdb
}  // namespace bristlecone
