// Databases without a log: see bristlecone/rocksdb.h.
//
// Open has what the last process left replayed (recover.h), and returns a wrapper that writes without
// RocksDB's log and commits the pool before it acknowledges.

#include <rocksdb/comparator.h>
#include <rocksdb/convenience.h>
#include <rocksdb/listener.h>
#include <rocksdb/utilities/stackable_db.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "files.h"
#include "memtable.h"
#include "recover.h"

namespace bristlecone {
namespace rocksdb {

using ::rocksdb::ColumnFamilyDescriptor;
using ::rocksdb::ColumnFamilyHandle;
using ::rocksdb::ColumnFamilyOptions;
using ::rocksdb::DB;
using ::rocksdb::DBOptions;
using ::rocksdb::Env;
using ::rocksdb::Options;
using ::rocksdb::Slice;
using ::rocksdb::StackableDB;
using ::rocksdb::Status;
using ::rocksdb::WriteBatch;
using ::rocksdb::WriteOptions;

namespace {

// Tells memtables which file their flush writes.
class Listener final : public ::rocksdb::EventListener {
 public:
  explicit Listener(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}
  void OnFlushBegin(DB*, const ::rocksdb::FlushJobInfo& info) override {
    // (Its file_number is not set yet.)
    BeginFlush(pool_.get(), info.cf_id, info.cf_name);
  }
  void OnTableFileCreationStarted(const ::rocksdb::TableFileCreationBriefInfo& info) override {
    if (info.reason != ::rocksdb::TableFileCreationReason::kFlush) {
      return;
    }
    // A path ends in the number and .sst.
    const size_t name = info.file_path.rfind('/') + 1;
    NoteFlush(pool_.get(), info.cf_name, std::strtoull(info.file_path.c_str() + name, nullptr, 10));
  }

 private:
  const std::shared_ptr<Pool> pool_;
};

Status NoPurges() {
  return Status::InvalidArgument(
      "experimental_mempurge_threshold writes entries from memtables to memtables, which is not durable; set it to 0");
}

// RocksDB's smallest.
constexpr size_t kArenaBlock = 4096;

// Checks and completes the options of a column family.
Status Prepare(const std::shared_ptr<Pool>& pool, const std::string& name, ColumnFamilyOptions* options) {
  if (options->comparator->timestamp_size() > 0) {
    return Status::NotSupported("column family " + name,
                                "its comparator has timestamps, which memtables in a pool do not replay");
  }
  if (options->inplace_update_support) {
    return Status::InvalidArgument("column family " + name,
                                   "inplace_update_support would change what is durable; set it to false");
  }
  if (options->experimental_mempurge_threshold > 0) {
    return NoPurges();
  }
  // Entries are in the pool. With blocks of RocksDB's size that are not used, it takes a memtable that is
  // small beside one for full at once.
  options->arena_block_size = kArenaBlock;
  const bool bytewise = options->comparator == ::rocksdb::BytewiseComparator();
  options->memtable_factory = std::make_shared<Factory>(pool, Index::kTree, bytewise);
  return Status::OK();
}

// What a batch has entries of.
class Entries final : public WriteBatch::Handler {
 public:
  struct Of {
    uint32_t family;
    // The place of its last entry, from 1.
    uint64_t last;
    // Whether one is a merge.
    bool merges;
  };
  std::vector<Of> families;

  Status PutCF(uint32_t family, const Slice&, const Slice&) override { return Add(family); }
  Status MergeCF(uint32_t family, const Slice&, const Slice&) override { return Add(family, true); }
  Status DeleteCF(uint32_t family, const Slice&) override { return Add(family); }
  Status SingleDeleteCF(uint32_t family, const Slice&) override { return Add(family); }
  Status MarkNoop(bool) override { return Status::OK(); }
  void LogData(const Slice&) override {}

 private:
  Status Add(uint32_t family, bool merges = false) {
    ++count_;
    for (Of& each : families) {
      if (each.family == family) {
        each.last = count_;
        each.merges |= merges;
        return Status::OK();
      }
    }
    families.push_back({family, count_, merges});
    return Status::OK();
  }

  uint64_t count_ = 0;
};

// A lock that threads hold together, or one alone. One that waits to be alone is overtaken by nobody who
// comes later: with std::shared_mutex, threads that hold it in turns would keep it for ever.
class Turns {
 public:
  void lock() {
    std::lock_guard<std::mutex> lock(next_);
    held_.lock();
  }
  void unlock() { held_.unlock(); }
  void lock_shared() {
    std::lock_guard<std::mutex> lock(next_);
    held_.lock_shared();
  }
  void unlock_shared() { held_.unlock_shared(); }

 private:
  std::mutex next_;
  std::shared_mutex held_;
};

using Alone = std::unique_lock<Turns>;
using Together = std::shared_lock<Turns>;

// A database without a log.
class Database final : public StackableDB {
 public:
  Database(std::shared_ptr<DB> db, Env* env, std::shared_ptr<Pool> pool,
           const std::vector<ColumnFamilyHandle*>& handles)
      : StackableDB(std::move(db)), env_(env), pool_(std::move(pool)) {
    Created(handles);
  }

  using StackableDB::Delete;
  using StackableDB::DeleteRange;
  using StackableDB::GetOptions;
  using StackableDB::Merge;
  using StackableDB::Put;
  using StackableDB::SetOptions;
  using StackableDB::SingleDelete;

  Status Put(const WriteOptions& options, ColumnFamilyHandle* family, const Slice& key,
             const Slice& value) override {
    WriteBatch batch;
    Status s = batch.Put(family, key, value);
    return s.ok() ? Write(options, &batch) : s;
  }
  Status Merge(const WriteOptions& options, ColumnFamilyHandle* family, const Slice& key,
               const Slice& value) override {
    WriteBatch batch;
    Status s = batch.Merge(family, key, value);
    return s.ok() ? Write(options, &batch) : s;
  }
  Status Delete(const WriteOptions& options, ColumnFamilyHandle* family, const Slice& key) override {
    WriteBatch batch;
    Status s = batch.Delete(family, key);
    return s.ok() ? Write(options, &batch) : s;
  }
  Status SingleDelete(const WriteOptions& options, ColumnFamilyHandle* family, const Slice& key) override {
    WriteBatch batch;
    Status s = batch.SingleDelete(family, key);
    return s.ok() ? Write(options, &batch) : s;
  }
  Status DeleteRange(const WriteOptions&, ColumnFamilyHandle*, const Slice&, const Slice&) override {
    return NoRanges();
  }
  Status PutEntity(const WriteOptions&, ColumnFamilyHandle*, const Slice&,
                   const ::rocksdb::WideColumns&) override {
    return NoEntities();
  }
  Status Put(const WriteOptions&, ColumnFamilyHandle*, const Slice&, const Slice&, const Slice&) override {
    return NoTimestamps();
  }
  Status Delete(const WriteOptions&, ColumnFamilyHandle*, const Slice&, const Slice&) override {
    return NoTimestamps();
  }
  Status SingleDelete(const WriteOptions&, ColumnFamilyHandle*, const Slice&, const Slice&) override {
    return NoTimestamps();
  }

  Status Write(const WriteOptions& options, WriteBatch* batch) override {
    if (batch == nullptr) {
      return Status::InvalidArgument("no batch");
    }
    if (batch->HasDeleteRange()) {
      return NoRanges();
    }
    if (batch->HasPutEntity()) {
      return NoEntities();
    }
    if (batch->HasBeginPrepare() || batch->HasEndPrepare() || batch->HasCommit() || batch->HasRollback()) {
      return Status::NotSupported("a prepared transaction needs RocksDB's log; commit it in one step");
    }
    Entries entries;
    Status s = batch->VerifyChecksum();  // (Which RocksDB looks at half-way.)
    if (s.ok()) {
      s = batch->Iterate(&entries);
    }
    if (!s.ok()) {
      return s;
    }
    WriteOptions unlogged = options;
    unlogged.disableWAL = true;
    unlogged.sync = false;
    unlogged.rate_limiter_priority = Env::IO_TOTAL;  // (It is the log's.)
    s = batch->Count() > 1 ? WriteAlone(unlogged, batch, entries) : WriteOne(unlogged, batch, entries);
    if (!s.ok()) {
      return s;
    }
    s = pool_->Commit();
    return s.ok() ? pool_->Spills() : s;
  }

  // A log has nothing, so memtables are flushed instead of it. RocksDB flushes one column family after
  // the other, and what is written meanwhile would be in the files of the later ones alone.
  Status GetLiveFilesStorageInfo(const ::rocksdb::LiveFilesStorageInfoOptions& options,
                                 std::vector<::rocksdb::LiveFileStorageInfo>* files) override {
    Alone lock(batches_);
    ::rocksdb::LiveFilesStorageInfoOptions flushing = options;
    flushing.wal_size_for_flush = 0;
    return StackableDB::GetLiveFilesStorageInfo(flushing, files);
  }
  Status GetLiveFiles(std::vector<std::string>& files, uint64_t* manifest, bool) override {
    Alone lock(batches_);
    return StackableDB::GetLiveFiles(files, manifest, true);
  }

  Status NewDefaultReplayer(const std::vector<ColumnFamilyHandle*>&, std::unique_ptr<::rocksdb::TraceReader>&&,
                            std::unique_ptr<::rocksdb::Replayer>*) override {
    return Status::NotSupported("a replayer would write behind the database's back; read the trace, and write to the "
                                "database itself");
  }

  // The environment is the caller's, who may use it when the database is closed.
  Env* GetEnv() const override { return env_; }
  ::rocksdb::FileSystem* GetFileSystem() const override { return env_->GetFileSystem().get(); }
  Options GetOptions(ColumnFamilyHandle* family) const override {
    Options options = StackableDB::GetOptions(family);
    options.env = env_;
    return options;
  }
  DBOptions GetDBOptions() const override {
    DBOptions options = StackableDB::GetDBOptions();
    options.env = env_;
    return options;
  }

  Status SetOptions(ColumnFamilyHandle* family,
                    const std::unordered_map<std::string, std::string>& options) override {
    auto purges = options.find("experimental_mempurge_threshold");
    if (purges != options.end() && std::strtod(purges->second.c_str(), nullptr) > 0) {
      return NoPurges();
    }
    auto block = options.find("arena_block_size");
    if (block != options.end()) {
      std::unordered_map<std::string, std::string> set = options;
      set["arena_block_size"] = std::to_string(kArenaBlock);
      return StackableDB::SetOptions(family, set);
    }
    return StackableDB::SetOptions(family, options);
  }

  Status CreateColumnFamily(const ColumnFamilyOptions& options, const std::string& name,
                            ColumnFamilyHandle** handle) override {
    ColumnFamilyOptions prepared = options;
    Status s = Prepare(pool_, name, &prepared);
    if (!s.ok()) {
      return s;
    }
    *handle = nullptr;
    s = StackableDB::CreateColumnFamily(prepared, name, handle);
    Created({*handle});
    return s;
  }
  Status CreateColumnFamilies(const ColumnFamilyOptions& options, const std::vector<std::string>& names,
                              std::vector<ColumnFamilyHandle*>* handles) override {
    ColumnFamilyOptions prepared = options;
    Status s = Prepare(pool_, names.empty() ? "" : names[0], &prepared);
    if (!s.ok()) {
      return s;
    }
    s = StackableDB::CreateColumnFamilies(prepared, names, handles);
    Created(*handles);
    return s;
  }
  Status CreateColumnFamilies(const std::vector<ColumnFamilyDescriptor>& families,
                              std::vector<ColumnFamilyHandle*>* handles) override {
    std::vector<ColumnFamilyDescriptor> prepared = families;
    for (ColumnFamilyDescriptor& family : prepared) {
      Status s = Prepare(pool_, family.name, &family.options);
      if (!s.ok()) {
        return s;
      }
    }
    Status s = StackableDB::CreateColumnFamilies(prepared, handles);
    Created(*handles);
    return s;
  }
  Status CreateColumnFamilyWithImport(const ColumnFamilyOptions& options, const std::string& name,
                                      const ::rocksdb::ImportColumnFamilyOptions& import,
                                      const ::rocksdb::ExportImportFilesMetaData& metadata,
                                      ColumnFamilyHandle** handle) override {
    ColumnFamilyOptions prepared = options;
    Status s = Prepare(pool_, name, &prepared);
    if (!s.ok()) {
      return s;
    }
    *handle = nullptr;
    s = StackableDB::CreateColumnFamilyWithImport(prepared, name, import, metadata, handle);
    Created({*handle});
    return s;
  }
  Status DropColumnFamily(ColumnFamilyHandle* family) override {
    // No write to it is under way.
    Alone lock(batches_);
    Status s = StackableDB::DropColumnFamily(family);
    return s.ok() ? Dropped(family) : s;
  }
  Status DropColumnFamilies(const std::vector<ColumnFamilyHandle*>& families) override {
    // One by one, so that it is known which were.
    for (ColumnFamilyHandle* family : families) {
      Status s = DropColumnFamily(family);
      if (!s.ok()) {
        return s;
      }
    }
    return Status::OK();
  }

 private:
  static Status NoRanges() {
    return Status::NotSupported(
        "DeleteRange needs RocksDB's log; delete the keys one by one, or flush and call DeleteFilesInRange");
  }
  static Status NoEntities() {
    return Status::NotSupported("PutEntity: memtables in a pool do not replay entities; put plain values");
  }
  static Status NoTimestamps() {
    return Status::NotSupported("timestamps: memtables in a pool do not replay them");
  }

  void Created(const std::vector<ColumnFamilyHandle*>& handles) {
    Alone lock(batches_);
    for (ColumnFamilyHandle* handle : handles) {
      ColumnFamilyDescriptor of;
      if (handle != nullptr) {
        live_[handle->GetID()] = handle->GetDescriptor(&of).ok() && of.options.merge_operator != nullptr;
      }
    }
  }

  Status Dropped(ColumnFamilyHandle* family) {
    live_.erase(family->GetID());
    bristlecone_fault fault;
    return bristlecone_session_drop_family(pool_->session(), family->GetID(), &fault) ? Status::OK()
                                                                                     : ToStatus(fault);
  }

  // Returns OK if nothing is in the way of a batch, and the place of the last entry that RocksDB will
  // insert. The caller holds batches_. A batch that RocksDB refuses half-way would end the whole
  // database, and let it acknowledge writes of others that it did not do.
  Status Check(const WriteOptions& options, const WriteBatch& batch, const Entries& entries, uint64_t* last) {
    Status s = pool_->Failed();
    if (s.ok()) {
      s = pool_->Spills();
    }
    if (!s.ok()) {
      return s;
    }
    std::vector<uint32_t> families;
    *last = 0;
    for (const auto& [family, place, merges] : entries.families) {
      auto live = live_.find(family);
      if (live != live_.end()) {
        if (merges && !live->second) {
          return Status::NotSupported("column family " + std::to_string(family) + " has no merge_operator");
        }
        if (batch.Count() > 1) {
          families.push_back(family);  // (One entry's memtable is most likely there. If not, it spills.)
        }
        *last = std::max(*last, place);
      } else if (!options.ignore_missing_column_families) {
        return Status::InvalidArgument("column family " + std::to_string(family) + " was dropped, or is none");
      }
    }
    // A record's head and its share of a leaf come to less.
    return pool_->MakeRoom(batch.GetDataSize() + 64 * static_cast<uint64_t>(batch.Count()), families);
  }

  Status Insert(const WriteOptions& options, WriteBatch* batch) {
    pool_->BeginWrite();
    Status s = StackableDB::Write(options, batch);
    pool_->EndWrite();
    return s;
  }

  Status WriteOne(const WriteOptions& options, WriteBatch* batch, const Entries& entries) {
    Together lock(batches_);
    uint64_t last;
    Status s = Check(options, *batch, entries, &last);
    // RocksDB may write it with another thread's entries, which asks for each family to be there.
    return s.ok() && last > 0 ? Insert(options, batch) : s;
  }

  Status WriteAlone(const WriteOptions& options, WriteBatch* batch, const Entries& entries) {
    Alone lock(batches_);
    uint64_t last;
    Status s = Check(options, *batch, entries, &last);
    if (!s.ok() || last == 0) {
      return s;
    }
    const uint64_t base = GetLatestSequenceNumber();
    bristlecone_fault fault;
    if (!bristlecone_session_begin_batch(pool_->session(), base, base + last, &fault)) {
      return ToStatus(fault);
    }
    s = Insert(options, batch);
    if (!bristlecone_session_end_batch(pool_->session(), !s.ok())) {
      pool_->Fail(HalfWay(s.ok() ? pool_->Spills() : s));
      s = pool_->Failed();
    }
    return s;
  }

  Env* const env_;
  const std::shared_ptr<Pool> pool_;
  // A batch of several entries is written while no other write is.
  Turns batches_;
  // The column families that there are, and whether they can merge. Under batches_.
  std::map<uint32_t, bool> live_;
};

}  // namespace

Status Open(const DBOptions& options, const std::string& name, const PoolOptions& pool_options,
            const std::vector<ColumnFamilyDescriptor>& families, std::vector<ColumnFamilyHandle*>* handles,
            DB** db) {
  *db = nullptr;
  if (options.unordered_write) {
    return Status::InvalidArgument("unordered_write acknowledges writes before memtables have them; set it to false");
  }
  if (options.enable_pipelined_write) {
    return Status::InvalidArgument("enable_pipelined_write writes to the log and to memtables at once, and there is no "
                                   "log; set it to false");
  }
  Env* const env = options.env != nullptr ? options.env : Env::Default();
  LastPool last(env, name);
  Status s = last.Read();
  std::shared_ptr<Pool> pool;
  if (s.ok()) {
    const bool must_exist = !pool_options.new_pool && last.IsOfFolder();
    s = Pool::Open(pool_options.path, pool_options.max_bytes, false, must_exist, &pool);
  }
  if (!s.ok()) {
    return s;
  }
  const std::shared_ptr<Env> guarded = GuardManifest(env, pool);
  DBOptions prepared = options;
  prepared.env = guarded.get();
  prepared.listeners.push_back(std::make_shared<Listener>(pool));
  // What an earlier process logged is in files before any memtable counts.
  prepared.avoid_flush_during_recovery = false;
  std::vector<ColumnFamilyDescriptor> descriptors = families;
  std::vector<bool> compacts;
  for (ColumnFamilyDescriptor& family : descriptors) {
    s = Prepare(pool, family.name, &family.options);
    if (!s.ok()) {
      return s;
    }
    // Not before Recover has paused all work.
    compacts.push_back(!family.options.disable_auto_compactions);
    family.options.disable_auto_compactions = true;
  }
  DB* inner = nullptr;
  s = DB::Open(prepared, name, descriptors, handles, &inner);
  if (!s.ok()) {
    return s;
  }
  pool->SetReplaying(true);
  s = Recover(inner, pool, pool_options, last, *handles, compacts);
  if (!s.ok()) {
    // Its end would flush what was replayed, unless that is off when it begins.
    inner->SetDBOptions({{"avoid_flush_during_shutdown", "true"}}).PermitUncheckedError();
    ::rocksdb::CancelAllBackgroundWork(inner, false);
    if (!options.avoid_flush_during_shutdown) {
      inner->SetDBOptions({{"avoid_flush_during_shutdown", "false"}}).PermitUncheckedError();
    }
    for (ColumnFamilyHandle* handle : *handles) {
      inner->DestroyColumnFamilyHandle(handle);
    }
    handles->clear();
    delete inner;
    return s;
  }
  // (Which keeps the environment until RocksDB has ended.)
  const auto close = [guarded](DB* open) { delete open; };
  *db = new Database(std::shared_ptr<DB>(inner, close), env, pool, *handles);
  return s;
}

Status Open(const Options& options, const std::string& name, const PoolOptions& pool, DB** db) {
  std::vector<ColumnFamilyHandle*> handles;
  std::vector<ColumnFamilyDescriptor> families{
      {::rocksdb::kDefaultColumnFamilyName, ColumnFamilyOptions(options)}};
  Status s = Open(DBOptions(options), name, pool, families, &handles, db);
  if (s.ok()) {
    // The database keeps one of its own.
    s = (*db)->DestroyColumnFamilyHandle(handles[0]);
  }
  return s;
}

}  // namespace rocksdb
}  // namespace bristlecone
