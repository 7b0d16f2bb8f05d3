// Databases without a log: see bristlecone/rocksdb.h.
//
// Open replays what the last process left (session.rs says how that is made atomic), and returns a
// wrapper that writes without RocksDB's log and commits the pool before it acknowledges.

#include <rocksdb/comparator.h>
#include <rocksdb/listener.h>
#include <rocksdb/utilities/stackable_db.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <shared_mutex>

#include "memtable.h"

namespace bristlecone {
namespace rocksdb {

using ::rocksdb::ColumnFamilyDescriptor;
using ::rocksdb::ColumnFamilyHandle;
using ::rocksdb::ColumnFamilyOptions;
using ::rocksdb::Comparator;
using ::rocksdb::DB;
using ::rocksdb::DBOptions;
using ::rocksdb::LiveFileMetaData;
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
    BeginFlush(pool_.get(), info.cf_id);
  }
  void OnTableFileCreationStarted(const ::rocksdb::TableFileCreationBriefInfo& info) override {
    if (info.reason != ::rocksdb::TableFileCreationReason::kFlush) {
      return;
    }
    // A path ends in the number and .sst.
    const size_t name = info.file_path.rfind('/') + 1;
    NoteFlush(pool_.get(), std::strtoull(info.file_path.c_str() + name, nullptr, 10));
  }

 private:
  const std::shared_ptr<Pool> pool_;
};

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
  const bool bytewise = options->comparator == ::rocksdb::BytewiseComparator();
  options->memtable_factory = std::make_shared<Factory>(pool, Index::kTree, bytewise);
  return Status::OK();
}

// A database without a log.
class Database final : public StackableDB {
 public:
  Database(DB* db, std::shared_ptr<Pool> pool) : StackableDB(db), pool_(std::move(pool)) {}

  using StackableDB::Delete;
  using StackableDB::DeleteRange;
  using StackableDB::Merge;
  using StackableDB::Put;
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
    Status s = pool_->Failed();
    if (s.ok()) {
      s = pool_->Spills();
    }
    if (s.ok()) {
      // A record's head and its share of a leaf come to less.
      s = pool_->MakeRoom(batch->GetDataSize() + 64 * static_cast<uint64_t>(batch->Count()));
    }
    if (!s.ok()) {
      return s;
    }
    WriteOptions unlogged = options;
    unlogged.disableWAL = true;
    unlogged.sync = false;
    s = batch->Count() > 1 ? WriteAlone(unlogged, batch) : WriteOne(unlogged, batch);
    if (!s.ok()) {
      return s;
    }
    s = pool_->Commit();
    return s.ok() ? pool_->Spills() : s;
  }

  Status CreateColumnFamily(const ColumnFamilyOptions& options, const std::string& name,
                            ColumnFamilyHandle** handle) override {
    ColumnFamilyOptions prepared = options;
    Status s = Prepare(pool_, name, &prepared);
    return s.ok() ? StackableDB::CreateColumnFamily(prepared, name, handle) : s;
  }
  Status CreateColumnFamilies(const ColumnFamilyOptions& options, const std::vector<std::string>& names,
                              std::vector<ColumnFamilyHandle*>* handles) override {
    ColumnFamilyOptions prepared = options;
    Status s = Prepare(pool_, names.empty() ? "" : names[0], &prepared);
    return s.ok() ? StackableDB::CreateColumnFamilies(prepared, names, handles) : s;
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
    return StackableDB::CreateColumnFamilies(prepared, handles);
  }
  Status CreateColumnFamilyWithImport(const ColumnFamilyOptions& options, const std::string& name,
                                      const ::rocksdb::ImportColumnFamilyOptions& import,
                                      const ::rocksdb::ExportImportFilesMetaData& metadata,
                                      ColumnFamilyHandle** handle) override {
    ColumnFamilyOptions prepared = options;
    Status s = Prepare(pool_, name, &prepared);
    return s.ok() ? StackableDB::CreateColumnFamilyWithImport(prepared, name, import, metadata, handle) : s;
  }
  Status DropColumnFamily(ColumnFamilyHandle* family) override {
    Status s = StackableDB::DropColumnFamily(family);
    return s.ok() ? Dropped(family) : s;
  }
  Status DropColumnFamilies(const std::vector<ColumnFamilyHandle*>& families) override {
    Status s = StackableDB::DropColumnFamilies(families);
    for (size_t i = 0; s.ok() && i < families.size(); ++i) {
      s = Dropped(families[i]);
    }
    return s;
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

  Status Dropped(ColumnFamilyHandle* family) {
    bristlecone_fault fault;
    return bristlecone_session_drop_family(pool_->session(), family->GetID(), &fault) ? Status::OK()
                                                                                     : ToStatus(fault);
  }

  Status WriteOne(const WriteOptions& options, WriteBatch* batch) {
    std::shared_lock<std::shared_mutex> lock(batches_);
    return StackableDB::Write(options, batch);
  }

  Status WriteAlone(const WriteOptions& options, WriteBatch* batch) {
    std::unique_lock<std::shared_mutex> lock(batches_);
    bristlecone_fault fault;
    if (!bristlecone_session_begin_batch(pool_->session(), GetLatestSequenceNumber(), &fault)) {
      return ToStatus(fault);
    }
    Status s = StackableDB::Write(options, batch);
    if (!bristlecone_session_end_batch(pool_->session(), !s.ok())) {
      pool_->Fail(Status::IOError("a batch failed half-way; open the database again", s.ToString()));
    }
    return s;
  }

  const std::shared_ptr<Pool> pool_;
  // A batch of several entries is written while no other write is.
  std::shared_mutex batches_;
};

// Compares keys with their lengths in front as RocksDB's internal comparator does.
int32_t CompareInternal(const void* context, const uint8_t* a, const uint8_t* b) {
  const auto* comparator = static_cast<const Comparator*>(context);
  Slice keys[2];
  uint64_t trailers[2];
  const uint8_t* both[2] = {a, b};
  for (int i = 0; i < 2; ++i) {
    Slice key = ::rocksdb::GetLengthPrefixedSlice(reinterpret_cast<const char*>(both[i]));
    keys[i] = Slice(key.data(), key.size() - 8);
    trailers[i] = 0;
    for (int byte = 7; byte >= 0; --byte) {
      trailers[i] = trailers[i] << 8 | static_cast<uint8_t>(key.data()[key.size() - 8 + byte]);
    }
  }
  int order = comparator->Compare(keys[0], keys[1]);
  if (order != 0) {
    return order < 0 ? -1 : 1;
  }
  return trailers[0] == trailers[1] ? 0 : (trailers[0] > trailers[1] ? -1 : 1);
}

// Types of entries, as RocksDB numbers them in its files.
enum EntryType : uint32_t { kDeletion = 0, kValue = 1, kMerge = 2, kSingleDeletion = 7 };

// Writes what the last process left to the database, in the order in which it was written.
class Replay {
 public:
  Replay(DB* db, const std::shared_ptr<Pool>& pool, const std::vector<ColumnFamilyHandle*>& handles)
      : db_(db), replay_(bristlecone_replay_new(pool->session())) {
    for (ColumnFamilyHandle* handle : handles) {
      families_[handle->GetID()] = handle;
    }
  }
  ~Replay() { bristlecone_replay_close(replay_); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  Status Run() {
    Status s = Read();
    return s.ok() ? WriteAll() : s;
  }

 private:
  // Reads all memtables, but leaves out those whose flush ended just before the process did.
  Status Read() {
    std::vector<bristlecone_old> read;
    bristlecone_old old{};
    for (size_t i = 0; bristlecone_replay_old(replay_, i, &old); ++i) {
      auto family = families_.find(old.family);
      if (family == families_.end()) {
        continue;  // it was dropped
      }
      const Comparator* comparator = family->second->GetComparator();
      const bool bytewise = comparator == ::rocksdb::BytewiseComparator();
      bristlecone_fault fault;
      if (!bristlecone_replay_read(replay_, i, bytewise ? nullptr : &CompareInternal, comparator, &old, &fault)) {
        return ToStatus(fault);
      }
      if (old.entries > 0) {
        read.push_back(old);
      }
    }
    std::vector<LiveFileMetaData> files;
    if (!read.empty()) {
      db_->GetLiveFilesMetaData(&files);
    }
    for (const bristlecone_old& each : read) {
      if (each.file != 0 && IsLive(files, each)) {
        bristlecone_replay_leave_out(replay_, &each);
      }
    }
    return Status::OK();
  }

  // Returns whether the file of a memtable's flush is in the database. A number alone might have been
  // given to another file since, but not with sequence numbers of this memtable. (A file may be of
  // several memtables, of which the first ones are marked as flushed and no longer here.)
  bool IsLive(const std::vector<LiveFileMetaData>& files, const bristlecone_old& old) {
    const std::string& name = families_[old.family]->GetName();
    return std::any_of(files.begin(), files.end(), [&](const LiveFileMetaData& file) {
      return file.column_family_name == name && file.file_number == old.file && file.smallest_seqno <= old.last &&
             old.first <= file.largest_seqno;
    });
  }

  Status WriteAll() {
    bristlecone_replay_sort(replay_);
    WriteOptions options;
    options.disableWAL = true;
    WriteBatch batch;
    bristlecone_entry entry;
    while (bristlecone_replay_next(replay_, &entry)) {
      Status s = Add(entry, &batch);
      if (s.ok() && batch.GetDataSize() > kBatchBytes) {
        s = db_->Write(options, &batch);
        batch.Clear();
      }
      if (!s.ok()) {
        return s;
      }
    }
    return batch.Count() == 0 ? Status::OK() : db_->Write(options, &batch);
  }

  Status Add(const bristlecone_entry& entry, WriteBatch* batch) {
    ColumnFamilyHandle* family = families_[entry.family];
    const Slice key(reinterpret_cast<const char*>(entry.key.data), entry.key.len);
    const Slice value(reinterpret_cast<const char*>(entry.value.data), entry.value.len);
    switch (entry.kind) {
      case kDeletion:
        return batch->Delete(family, key);
      case kValue:
        return batch->Put(family, key, value);
      case kMerge:
        return batch->Merge(family, key, value);
      case kSingleDeletion:
        return batch->SingleDelete(family, key);
      default:
        return Status::Corruption("the pool has an entry of type " + std::to_string(entry.kind) +
                                  ", which no write makes");
    }
  }

  static constexpr size_t kBatchBytes = 1 << 20;

  DB* const db_;
  bristlecone_replay* const replay_;
  std::map<uint32_t, ColumnFamilyHandle*> families_;
};

// Returns a number that tells databases apart (FNV-1a of the identity), not 0.
uint64_t OwnerOf(const std::string& identity) {
  uint64_t hash = 0xCBF29CE484222325;
  for (char c : identity) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  }
  return hash == 0 ? 1 : hash;
}

// Replays, makes the new memtables count, and lets compactions go on.
Status Recover(DB* db, const std::shared_ptr<Pool>& pool, const std::vector<ColumnFamilyHandle*>& handles,
               const std::vector<bool>& compacts) {
  std::string identity;
  Status s = db->GetDbIdentity(identity);
  if (!s.ok()) {
    return s;
  }
  const uint64_t owner = OwnerOf(identity);
  bristlecone_fault fault;
  if (!bristlecone_session_check_owner(pool->session(), owner, &fault)) {
    return ToStatus(fault);
  }
  s = Replay(db, pool, handles).Run();
  if (s.ok()) {
    s = pool->Spills();
  }
  if (s.ok() && pool->switched_early()) {
    s = Status::IOError("RocksDB switched a memtable while the writes of the last process were replayed; "
                        "open the database again");
  }
  if (!s.ok()) {
    return s;
  }
  if (!bristlecone_session_publish(pool->session(), owner, &fault)) {
    return ToStatus(fault);
  }
  pool->SetReplaying(false);
  std::vector<ColumnFamilyHandle*> enabled;
  for (size_t i = 0; i < handles.size(); ++i) {
    if (compacts[i]) {
      enabled.push_back(handles[i]);
    }
  }
  return enabled.empty() ? s : db->EnableAutoCompaction(enabled);
}

}  // namespace

Status Open(const DBOptions& options, const std::string& name, const PoolOptions& pool_options,
            const std::vector<ColumnFamilyDescriptor>& families, std::vector<ColumnFamilyHandle*>* handles,
            DB** db) {
  *db = nullptr;
  if (options.unordered_write) {
    return Status::InvalidArgument("unordered_write acknowledges writes before memtables have them; set it to false");
  }
  std::shared_ptr<Pool> pool;
  Status s = Pool::Open(pool_options.path, pool_options.max_bytes, false, &pool);
  if (!s.ok()) {
    return s;
  }
  DBOptions prepared = options;
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
    // Not before it is known which flushes ended.
    compacts.push_back(!family.options.disable_auto_compactions);
    family.options.disable_auto_compactions = true;
  }
  DB* inner = nullptr;
  s = DB::Open(prepared, name, descriptors, handles, &inner);
  if (!s.ok()) {
    return s;
  }
  pool->SetReplaying(true);
  s = Recover(inner, pool, *handles, compacts);
  if (!s.ok()) {
    for (ColumnFamilyHandle* handle : *handles) {
      inner->DestroyColumnFamilyHandle(handle);
    }
    handles->clear();
    delete inner;
    return s;
  }
  *db = new Database(inner, pool);
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
