// What an opening does with what the last process left: see recover.h.

#include "recover.h"

#include <rocksdb/comparator.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <map>
#include <utility>

namespace bristlecone {
namespace rocksdb {

using ::rocksdb::ColumnFamilyHandle;
using ::rocksdb::Comparator;
using ::rocksdb::DB;
using ::rocksdb::LiveFileMetaData;
using ::rocksdb::Slice;
using ::rocksdb::Status;
using ::rocksdb::WriteBatch;
using ::rocksdb::WriteOptions;

namespace {

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
      : db_(db), pool_(pool), replay_(bristlecone_replay_new(pool->session())) {
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

  // Returns whether there is anything to replay.
  bool HasAny() {
    bristlecone_old old{};
    return bristlecone_replay_old(replay_, 0, &old);
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
    // One file may be of several memtables. It lacks versions that later ones of them hide, so it is
    // compared with all of them at once.
    std::map<std::pair<uint32_t, uint64_t>, bristlecone_old> flushed;
    for (const bristlecone_old& each : read) {
      auto [all, is_new] = flushed.emplace(std::make_pair(each.family, each.file), each);
      all->second.first = std::min(all->second.first, each.first);
      all->second.last = std::max(all->second.last, each.last);
    }
    for (const bristlecone_old& each : read) {
      if (each.file != 0 && IsLive(files, flushed[{each.family, each.file}])) {
        bristlecone_replay_leave_out(replay_, &each);
      }
    }
    return Status::OK();
  }

  // Returns whether the file of memtables' flush is in the database. A number alone might have been
  // given to another file since, but not with sequence numbers of these memtables. (A file may be of
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
    WriteBatch batch;
    bristlecone_entry entry;
    while (bristlecone_replay_next(replay_, &entry)) {
      Status s = Add(entry, &batch);
      if (s.ok() && batch.GetDataSize() > kBatchBytes) {
        s = Write(&batch);
        batch.Clear();
      }
      if (!s.ok()) {
        return s;
      }
    }
    return batch.Count() == 0 ? Status::OK() : Write(&batch);
  }

  Status Write(WriteBatch* batch) {
    WriteOptions options;
    options.disableWAL = true;
    // Nothing flushes meanwhile, so no stall would end.
    options.no_slowdown = true;
    Status s = db_->Write(options, batch);
    if (s.ok()) {
      s = pool_->Spills();
    }
    if (s.ok() && pool_->switched_early()) {
      s = Status::IOError("RocksDB switched a memtable while the writes of the last process were replayed; "
                          "open the database again");
    }
    return s;
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
  const std::shared_ptr<Pool> pool_;
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

}  // namespace

Status LastPool::Read() {
  Status s = env_->FileExists(Path());
  if (s.IsNotFound()) {
    return Status::OK();
  }
  std::string text;
  s = ReadFileToString(env_, Path(), &text);
  const size_t first = text.find('\n');
  const size_t second = first == std::string::npos ? first : text.find('\n', first + 1);
  if (s.ok() && (second == std::string::npos || text.back() != '\n')) {
    s = Status::Corruption(Path(), "is not three lines: the database's identity, its pool's, and its pool's path");
  }
  if (s.ok()) {
    identity_ = text.substr(0, first);
    pool_ = text.substr(first + 1, second - first - 1);
    path_ = text.substr(second + 1, text.size() - second - 2);
  }
  return s;
}

bool LastPool::IsOfFolder() const {
  std::string identity;
  if (identity_.empty() || !ReadFileToString(env_, folder_ + "/IDENTITY", &identity).ok()) {
    return false;
  }
  if (!identity.empty() && identity.back() == '\n') {
    identity.pop_back();
  }
  return identity == identity_;
}

Status LastPool::Write(const std::string& identity, const std::string& pool, const std::string& path) const {
  const std::string next = Path() + ".new";
  Status s = WriteStringToFile(env_, identity + "\n" + pool + "\n" + path + "\n", next, true);
  if (s.ok()) {
    s = env_->RenameFile(next, Path());
  }
  std::unique_ptr<::rocksdb::Directory> directory;
  if (s.ok()) {
    s = env_->NewDirectory(folder_, &directory);
  }
  return s.ok() ? directory->Fsync() : s;
}

Status Recover(DB* db, const std::shared_ptr<Pool>& pool, const PoolOptions& options, const LastPool& last,
               const std::vector<ColumnFamilyHandle*>& handles, const std::vector<bool>& compacts) {
  // What is replayed in part must not get into a file: the whole will be replayed again.
  Status s = db->PauseBackgroundWork();
  // Compactions begin with the rest, too. The options that RocksDB keeps say from here on what was asked for.
  std::vector<ColumnFamilyHandle*> enabled;
  for (size_t i = 0; i < handles.size(); ++i) {
    if (compacts[i]) {
      enabled.push_back(handles[i]);
    }
  }
  if (s.ok() && !enabled.empty()) {
    s = db->EnableAutoCompaction(enabled);
  }
  std::string identity;
  if (s.ok()) {
    s = db->GetDbIdentity(identity);
  }
  if (!s.ok()) {
    return s;
  }
  const uint64_t owner = OwnerOf(identity);
  bristlecone_fault fault;
  if (!bristlecone_session_check_owner(pool->session(), owner, &fault)) {
    return ToStatus(fault);
  }
  Replay replay(db, pool, handles);
  const bool is_last = last.Is(identity, pool->Id());
  if (!is_last && last.IsOf(identity)) {
    if (!options.new_pool) {
      return Status::InvalidArgument("the database's pool is that of " + last.path() + ", and " + options.path +
                                     " is another; name that one, or set new_pool to go on without what it holds");
    }
    if (replay.HasAny()) {
      return Status::InvalidArgument("pool " + options.path + " is not the database's last one, and holds writes, "
                                     "which may be older than the database; remove it");
    }
  }
  if (!last.IsOf(identity) && replay.HasAny()) {
    // The file was written before any memtable of this database counted.
    return Status::InvalidArgument("the database's folder lacks BRISTLECONE_POOL, as one that was restored from a "
                                   "backup does, and pool " + options.path +
                                   " holds writes, which that may lack; remove the pool if they are not wanted");
  }
  s = replay.Run();
  if (s.ok() && !is_last) {
    s = last.Write(identity, pool->Id(), options.path);
  }
  if (!s.ok()) {
    return s;
  }
  if (!bristlecone_session_publish(pool->session(), owner, &fault)) {
    return ToStatus(fault);
  }
  pool->SetReplaying(false);
  pool->SetGuarded();
  return db->ContinueBackgroundWork();
}

}  // namespace rocksdb
}  // namespace bristlecone
