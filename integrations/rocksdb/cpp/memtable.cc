// Memtables in a pool, as RocksDB wants them: see memtable.h.

#include "memtable.h"

#include <rocksdb/slice.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <unordered_set>
#include <vector>

namespace bristlecone {
namespace rocksdb {

using ::rocksdb::Allocator;
using ::rocksdb::Arena;
using ::rocksdb::GetLengthPrefixedSlice;
using ::rocksdb::KeyHandle;
using ::rocksdb::Logger;
using ::rocksdb::MemTableRep;
using ::rocksdb::Slice;
using ::rocksdb::SliceTransform;
using ::rocksdb::Status;

Status ToStatus(const bristlecone_fault& fault) {
  switch (fault.kind) {
    case BRISTLECONE_CORRUPTION:
      return Status::Corruption(fault.message);
    case BRISTLECONE_INVALID:
      return Status::InvalidArgument(fault.message);
    case BRISTLECONE_NO_SPACE:
      return Status::NoSpace(fault.message);
    default:
      return Status::IOError(fault.message);
  }
}

Status HalfWay(const Status& reason) {
  return Status::IOError("a batch failed half-way; open the database again", reason.ToString());
}

Status Pool::Open(const std::string& path, uint64_t max_bytes, bool scratch, bool must_exist,
                  std::shared_ptr<Pool>* pool) {
  bristlecone_fault fault;
  bristlecone_session* session = bristlecone_session_open(ToBytes(path), max_bytes, scratch, must_exist, &fault);
  if (session == nullptr) {
    return ToStatus(fault);
  }
  pool->reset(new Pool(session));
  return Status::OK();
}

Status Pool::Commit() {
  bristlecone_fault fault;
  if (bristlecone_session_commit(session_, &fault)) {
    return Status::OK();
  }
  Fail(fault);
  return ToStatus(fault);
}

Status Pool::MakeRoom(uint64_t bytes, const std::vector<uint32_t>& families) const {
  bristlecone_fault fault;
  return bristlecone_session_make_room(session_, bytes, families.data(), families.size(), &fault)
             ? Status::OK()
             : ToStatus(fault);
}

std::string Pool::Id() const {
  uint8_t bytes[16];
  bristlecone_session_uuid(session_, bytes);
  return Slice(reinterpret_cast<const char*>(bytes), sizeof(bytes)).ToString(true);
}

void Pool::Allocating() {
  if (guarded_.load(std::memory_order_acquire) && writers_.load(std::memory_order_relaxed) == 0) {
    Refuse(Status::NotSupported("a TransactionDB, or another writer behind the database's back, wrote to it, "
                                "so that its log and its pool disagree",
                                "write to the database itself"));
  }
}

void Pool::Fail(const Status& status) {
  Refuse(status);
  has_ended_.store(true);
}

void Pool::Fail(const bristlecone_fault& fault) {
  // Where there is no room now, a later commit has some, or says that there is none.
  if (fault.kind != BRISTLECONE_NO_SPACE) {
    Fail(ToStatus(fault));
  }
}

void Pool::Refuse(const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (failed_.ok()) {
    failed_ = status;
    has_failed_.store(true);
  }
}

Status Pool::Failed() const {
  if (!has_failed_.load(std::memory_order_relaxed)) {
    return Status::OK();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  return failed_;
}

Status Pool::Ended() const { return has_ended_.load() ? Failed() : Status::OK(); }

void Pool::Spilled(const Status& reason) {
  if (bristlecone_session_spilled(session_)) {
    Fail(HalfWay(reason));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  spill_reason_ = reason;
  spills_.fetch_add(1);
}

Status Pool::Spills() const {
  if (spills_.load(std::memory_order_relaxed) == 0) {
    return Status::OK();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  return Status::IOError("entries are in DRAM alone until they are flushed", spill_reason_.ToString());
}

void Pool::Switched(bool empty) {
  if (!empty && replaying()) {
    switched_early_.store(true);
  }
}

namespace {

// A flush that this thread has begun, and a memtable that it reads.
struct Flush {
  const Pool* pool;
  uint32_t family;
  std::string name;
  const bristlecone_memtable* memtable;
};

// Those without a memtable have begun; the others wait for the name of their file. RocksDB says that a
// flush begins, asks each memtable for an iterator, and says which file it makes, in one thread.
thread_local std::vector<Flush> flushes;

// Notes that this thread reads a memtable, if it flushes that.
void Reads(const Pool* pool, uint32_t family, const bristlecone_memtable* memtable) {
  for (const Flush& flush : flushes) {
    if (flush.pool == pool && flush.family == family && flush.memtable == nullptr) {
      Flush reads = flush;
      reads.memtable = memtable;
      flushes.push_back(std::move(reads));
      return;
    }
  }
}

void EndFlush(const Pool* pool, uint32_t family) {
  flushes.erase(std::remove_if(flushes.begin(), flushes.end(),
                               [&](const Flush& f) { return f.pool == pool && f.family == family; }),
                flushes.end());
}

// Puts a key's length in front of it.
void AddLength(const Slice& internal_key, std::string* key) {
  key->clear();
  size_t length = internal_key.size();
  while (length >= 0x80) {
    key->push_back(static_cast<char>(length | 0x80));
    length >>= 7;
  }
  key->push_back(static_cast<char>(length));
  key->append(internal_key.data(), internal_key.size());
}

// Returns the part of an entry that is its key, with its length.
Slice KeyOf(const char* entry) {
  Slice key = GetLengthPrefixedSlice(entry);
  return Slice(entry, static_cast<size_t>(key.data() + key.size() - entry));
}

int32_t Compare(const void* context, const uint8_t* a, const uint8_t* b) {
  const auto& comparator = *static_cast<const MemTableRep::KeyComparator*>(context);
  return comparator(reinterpret_cast<const char*>(a), reinterpret_cast<const char*>(b));
}

// Memory of an iterator that this thread has destroyed. RocksDB destroys some iterators without
// freeing their memory, which is to come from an arena of its own that has no public interface. So
// an iterator's memory is kept when it is destroyed, and serves the thread's next one.
struct Parked {
  void* memory = nullptr;
  ~Parked() {
    std::free(memory);
    memory = nullptr;
  }
};

thread_local Parked parked;

// Bytes of an iterator, of either kind.
constexpr size_t kIteratorBytes = 1024;

class Iterator;

// The iterator of this thread's last MemTableRep::Get, which RocksDB neither destroys nor frees. The
// next one takes its place.
struct Place {
  alignas(std::max_align_t) unsigned char memory[kIteratorBytes];
  Iterator* live = nullptr;
  ~Place();
  void* Clear();
};

thread_local Place place;

// What both kinds of iterators have: their memory.
class Iterator : public MemTableRep::Iterator {
 public:
  explicit Iterator(bool in_place) : in_place_(in_place) {
    if (in_place) {
      place.live = this;
    }
  }
  ~Iterator() override {
    if (in_place_) {
      place.live = nullptr;
    } else {
      std::free(parked.memory);
      parked.memory = this;
    }
  }

  static void* operator new(size_t size) {
    if (size > kIteratorBytes) {
      throw std::bad_alloc();
    }
    void* memory = parked.memory;
    parked.memory = nullptr;
    if (memory == nullptr && (memory = std::malloc(kIteratorBytes)) == nullptr) {
      throw std::bad_alloc();
    }
    return memory;
  }
  static void* operator new(size_t, void* memory) { return memory; }
  static void operator delete(void*) {}
  static void operator delete(void*, void*) {}

 private:
  const bool in_place_;
};

void* Place::Clear() {
  if (live != nullptr) {
    live->~Iterator();
  }
  return memory;
}

Place::~Place() { Clear(); }

// Reads some entries at a time. Entries that are inserted meanwhile may be missed: a reader sees
// those up to a sequence number, all of which are there before it begins.
class PoolIterator final : public Iterator {
 public:
  // `point` is for MemTableRep::Get: after Seek there is one entry of the same user key, or none.
  PoolIterator(const bristlecone_memtable* memtable, bool point, bool in_place)
      : Iterator(in_place), memtable_(memtable), point_(point) {}

  bool Valid() const override { return at_ < count_; }
  const char* key() const override { return reinterpret_cast<const char*>(entries_[at_]); }

  void Next() override { Step(true); }
  void Prev() override { Step(false); }

  void Seek(const Slice& internal_key, const char* memtable_key) override {
    Slice key = Target(internal_key, memtable_key);
    if (point_) {
      entries_[0] = bristlecone_memtable_get(memtable_, ToBytes(key));
      at_ = 0;
      count_ = entries_[0] == nullptr ? 0 : 1;
      asked_ = 1;
      up_ = true;
      more_ = 4;
      return;
    }
    Read(key, false, true, kFirst);
  }
  void SeekForPrev(const Slice& internal_key, const char* memtable_key) override {
    Read(Target(internal_key, memtable_key), false, false, kFirst);
  }
  void SeekToFirst() override { Read(Slice(), false, true, kFirst); }
  void SeekToLast() override { Read(Slice(), false, false, kFirst); }

 private:
  static constexpr size_t kFirst = 8;
  static constexpr size_t kMost = 64;

  Slice Target(const Slice& internal_key, const char* memtable_key) {
    if (memtable_key != nullptr) {
      return KeyOf(memtable_key);
    }
    AddLength(internal_key, &target_);
    return target_;
  }

  void Step(bool up) {
    if (up == up_ && at_ + 1 < count_) {
      ++at_;
    } else if (up != up_ && at_ > 0) {
      --at_;
    } else if (up == up_ && count_ < asked_) {
      count_ = at_ = 0;  // that was the last
    } else {
      Read(KeyOf(key()), true, up, up == up_ ? more_ : kFirst);
    }
  }

  void Read(const Slice& from, bool after, bool up, size_t most) {
    asked_ = most;
    count_ = bristlecone_memtable_scan(memtable_, ToBytes(from), after, up, entries_, most);
    at_ = 0;
    up_ = up;
    more_ = most * 4 < kMost ? most * 4 : kMost;
  }

  const bristlecone_memtable* const memtable_;
  const bool point_;
  bool up_ = true;
  size_t at_ = 0;
  size_t count_ = 0;
  size_t asked_ = 1;
  size_t more_ = kFirst;
  std::string target_;
  const uint8_t* entries_[kMost];
};

static_assert(sizeof(PoolIterator) <= kIteratorBytes);

// Entries of the pool, and those of DRAM.
class MergedIterator final : public Iterator {
 public:
  MergedIterator(MemTableRep::Iterator* a, MemTableRep::Iterator* b, const MemTableRep::KeyComparator& comparator,
                 bool in_place)
      : Iterator(in_place),
        both_{std::unique_ptr<MemTableRep::Iterator>(a), std::unique_ptr<MemTableRep::Iterator>(b)},
        comparator_(comparator) {}

  bool Valid() const override { return both_[current_]->Valid(); }
  const char* key() const override { return both_[current_]->key(); }

  void Next() override { Step(true); }
  void Prev() override { Step(false); }
  void Seek(const Slice& internal_key, const char* memtable_key) override {
    for (auto& each : both_) {
      each->Seek(internal_key, memtable_key);
    }
    Choose(true);
  }
  void SeekForPrev(const Slice& internal_key, const char* memtable_key) override {
    for (auto& each : both_) {
      each->SeekForPrev(internal_key, memtable_key);
    }
    Choose(false);
  }
  void SeekToFirst() override {
    for (auto& each : both_) {
      each->SeekToFirst();
    }
    Choose(true);
  }
  void SeekToLast() override {
    for (auto& each : both_) {
      each->SeekToLast();
    }
    Choose(false);
  }

 private:
  void Step(bool up) {
    if (up != up_) {
      // The other one is on the wrong side of the current entry.
      MemTableRep::Iterator& other = *both_[1 - current_];
      Slice at = GetLengthPrefixedSlice(key());
      if (up) {
        other.Seek(at, key());
      } else {
        other.SeekForPrev(at, key());
      }
    }
    if (up) {
      both_[current_]->Next();
    } else {
      both_[current_]->Prev();
    }
    Choose(up);
  }

  void Choose(bool up) {
    up_ = up;
    if (!both_[0]->Valid() || !both_[1]->Valid()) {
      current_ = both_[0]->Valid() ? 0 : 1;
      return;
    }
    bool first_is_less = comparator_(both_[0]->key(), both_[1]->key()) < 0;
    current_ = first_is_less == up ? 0 : 1;
  }

  std::unique_ptr<MemTableRep::Iterator> both_[2];
  const MemTableRep::KeyComparator& comparator_;
  int current_ = 0;
  bool up_ = true;
};

class Rep final : public MemTableRep {
 public:
  Rep(std::shared_ptr<Pool> pool, const KeyComparator& comparator, Allocator* allocator, Logger* logger,
      uint32_t family, Index index, bool bytewise)
      : MemTableRep(allocator),
        pool_(std::move(pool)),
        comparator_(comparator),
        logger_(logger),
        family_(family),
        memtable_(bristlecone_memtable_new(pool_->session(), family, index == Index::kSkipList,
                                           bytewise ? nullptr : &Compare, &comparator)) {}

  ~Rep() override {
    bristlecone_memtable_close(memtable_);
    if (spill_.load() != nullptr) {
      if (!flushed_) {
        pool_->SpillFlushed();
      }
      delete spill_.load();
    }
  }

  KeyHandle Allocate(const size_t len, char** buf) override {
    pool_->Allocating();
    bristlecone_fault fault;
    uint8_t* at = bristlecone_memtable_allocate(memtable_, len, &fault);
    if (at == nullptr) {
      return Spill(fault)->Allocate(len, buf);
    }
    *buf = reinterpret_cast<char*>(at);
    return at;
  }

  void Insert(KeyHandle handle) override { InsertKey(handle); }
  void InsertConcurrently(KeyHandle handle) override { InsertKey(handle); }
  bool InsertKeyWithHint(KeyHandle handle, void**) override { return InsertKey(handle); }
  bool InsertKeyConcurrently(KeyHandle handle) override { return InsertKey(handle); }
  bool InsertKeyWithHintConcurrently(KeyHandle handle, void**) override { return InsertKey(handle); }

  bool InsertKey(KeyHandle handle) override {
    const uint8_t* at = static_cast<const uint8_t*>(handle);
    MemTableRep* spill = spill_.load(std::memory_order_acquire);
    if (spill != nullptr && !bristlecone_session_holds(pool_->session(), at)) {
      return spill->InsertKeyConcurrently(handle);
    }
    bristlecone_fault fault;
    int32_t inserted = bristlecone_memtable_insert(memtable_, at, &fault);
    if (inserted >= 0) {
      return inserted == 1;
    }
    // The record's length is in front of it.
    uint32_t len;
    std::memcpy(&len, at - 8, sizeof(len));
    char* copy;
    KeyHandle spilled = Spill(fault)->Allocate(len, &copy);
    std::memcpy(copy, at, len);
    return Spill(fault)->InsertKeyConcurrently(spilled);
  }

  bool Contains(const char* key) const override {
    MemTableRep* spill = spill_.load(std::memory_order_acquire);
    if (spill != nullptr && spill->Contains(key)) {
      return true;
    }
    const uint8_t* found = bristlecone_memtable_get(memtable_, ToBytes(KeyOf(key)));
    return found != nullptr && comparator_(reinterpret_cast<const char*>(found), key) == 0;
  }

  void MarkReadOnly() override {
    read_only_.store(true, std::memory_order_release);
    pool_->Switched(bristlecone_memtable_bytes(memtable_) == 0);
    if (bristlecone_memtable_read_only(memtable_)) {
      // The memtable's flush comes after this.
      pool_->Fail(HalfWay(Status::Aborted("RocksDB refused one of its entries")));
    }
  }

  void MarkFlushed() override {
    bristlecone_fault fault;
    if (!bristlecone_memtable_flushed(memtable_, &fault)) {
      pool_->Fail(fault);
    }
    if (spill_.load() != nullptr && !flushed_) {
      pool_->SpillFlushed();
    }
    flushed_ = true;
  }

  size_t ApproximateMemoryUsage() override {
    return pool_->replaying() ? 0 : bristlecone_memtable_bytes(memtable_);
  }

  void UniqueRandomSample(const uint64_t num_entries, const uint64_t target_sample_size,
                          std::unordered_set<const char*>* entries) override {
    entries->clear();
    const uint64_t step = target_sample_size == 0 ? num_entries : num_entries / target_sample_size;
    std::unique_ptr<MemTableRep::Iterator> it(GetIterator(nullptr));
    uint64_t i = 0;
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      if (step == 0 || i++ % step == 0) {
        entries->insert(it->key());
      }
    }
  }

  MemTableRep::Iterator* GetIterator(Arena*) override {
    if (read_only_.load(std::memory_order_acquire)) {
      Reads(pool_.get(), family_, memtable_);
    }
    return NewIterator(false);
  }

  // RocksDB calls this without an arena in Get, and otherwise for iterators with a prefix.
  MemTableRep::Iterator* GetDynamicPrefixIterator(Arena* arena) override { return NewIterator(arena == nullptr); }

 private:
  MemTableRep::Iterator* NewIterator(bool point) {
    MemTableRep* spill = spill_.load(std::memory_order_acquire);
    if (spill == nullptr) {
      return point ? new (place.Clear()) PoolIterator(memtable_, true, true)
                   : new PoolIterator(memtable_, false, false);
    }
    MemTableRep::Iterator* pool = new PoolIterator(memtable_, false, false);
    MemTableRep::Iterator* dram = spill->GetIterator(nullptr);
    return point ? new (place.Clear()) MergedIterator(pool, dram, comparator_, true)
                 : new MergedIterator(pool, dram, comparator_, false);
  }

  // Returns the memtable in DRAM that takes what the pool has no room for.
  MemTableRep* Spill(const bristlecone_fault& fault) {
    MemTableRep* spill = spill_.load(std::memory_order_acquire);
    if (spill != nullptr) {
      return spill;
    }
    std::lock_guard<std::mutex> lock(spilling_);
    spill = spill_.load(std::memory_order_relaxed);
    if (spill == nullptr) {
      pool_->Spilled(ToStatus(fault));
      spill = ::rocksdb::SkipListFactory().CreateMemTableRep(comparator_, allocator_, nullptr, logger_);
      spill_.store(spill, std::memory_order_release);
    }
    return spill;
  }

  const std::shared_ptr<Pool> pool_;
  const KeyComparator& comparator_;
  Logger* const logger_;
  const uint32_t family_;
  bristlecone_memtable* const memtable_;
  std::atomic<bool> read_only_{false};
  bool flushed_ = false;
  std::mutex spilling_;
  std::atomic<MemTableRep*> spill_{nullptr};
};

}  // namespace

void BeginFlush(const Pool* pool, uint32_t family, const std::string& name) {
  // An earlier one may have failed before it made a file.
  EndFlush(pool, family);
  flushes.push_back({pool, family, name, nullptr});
}

void NoteFlush(Pool* pool, const std::string& name, uint64_t file) {
  std::vector<uint32_t> families;
  for (const Flush& flush : flushes) {
    if (flush.pool != pool || flush.name != name || flush.memtable == nullptr) {
      continue;
    }
    families.push_back(flush.family);
    bristlecone_fault fault;
    if (!bristlecone_memtable_flushing(flush.memtable, file, &fault)) {
      pool->Fail(fault);
    }
  }
  for (uint32_t family : families) {
    EndFlush(pool, family);
  }
}

MemTableRep* Factory::CreateMemTableRep(const MemTableRep::KeyComparator& comparator, Allocator* allocator,
                                        const SliceTransform*, Logger* logger, uint32_t family) {
  return new Rep(pool_, comparator, allocator, logger, family, index_, bytewise_);
}

Status NewScratchFactory(const ScratchOptions& options,
                         std::shared_ptr<::rocksdb::MemTableRepFactory>* factory) {
  std::shared_ptr<Pool> pool;
  Status s = Pool::Open(options.path, options.max_bytes, true, false, &pool);
  if (s.ok()) {
    factory->reset(new Factory(pool, options.index, options.bytewise));
  }
  return s;
}

}  // namespace rocksdb
}  // namespace bristlecone
