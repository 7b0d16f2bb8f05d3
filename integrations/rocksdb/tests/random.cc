// Random operations on a database with memtables in a pool, and on one with RocksDB's own skip list:
// every answer must be the same.
//
//   random [--folder DIR] [--operations N] [--seed N]

#include <rocksdb/comparator.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/write_batch.h>

#include <memory>
#include <vector>

#include "bristlecone/rocksdb.h"
#include "support.h"

using namespace ::rocksdb;

namespace {

constexpr int kFamilies = 3;

struct Two {
  DB* ours = nullptr;
  DB* theirs = nullptr;
  std::vector<ColumnFamilyHandle*> our_families;
  std::vector<ColumnFamilyHandle*> their_families;
};

std::vector<ColumnFamilyDescriptor> Families() {
  std::vector<ColumnFamilyDescriptor> families;
  for (int i = 0; i < kFamilies; ++i) {
    ColumnFamilyOptions options;
    options.merge_operator = std::make_shared<Append>();
    options.write_buffer_size = 256 << 10;
    options.arena_block_size = 16 << 10;
    options.level0_file_num_compaction_trigger = 2;
    options.max_write_buffer_number = 3;
    if (i == 1) {
      // An order that no built-in path knows.
      options.comparator = ReverseBytewiseComparator();
    }
    families.emplace_back(i == 0 ? kDefaultColumnFamilyName : "family" + std::to_string(i), options);
  }
  return families;
}

void Open(const std::string& folder, Two* two) {
  DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  CHECK_OK(bristlecone::rocksdb::Open(options, folder + "/ours", {folder + "/pool"}, Families(),
                                      &two->our_families, &two->ours));
  CHECK_OK(DB::Open(options, folder + "/theirs", Families(), &two->their_families, &two->theirs));
}

void Close(Two* two) {
  for (int i = 0; i < kFamilies; ++i) {
    CHECK_OK(two->ours->DestroyColumnFamilyHandle(two->our_families[i]));
    CHECK_OK(two->theirs->DestroyColumnFamilyHandle(two->their_families[i]));
  }
  two->our_families.clear();
  two->their_families.clear();
  delete two->ours;
  delete two->theirs;
}

struct Random {
  std::mt19937_64 engine;
  uint64_t Below(uint64_t most) { return engine() % most; }
  std::string Key() {
    // Few of some lengths, so that keys meet; prefixes of each other, so that the order is tried.
    std::string key = "key" + std::to_string(Below(2000));
    return Below(8) == 0 ? key + std::string(Below(4), '\0') : key;
  }
  std::string Value() { return std::string(Below(50) == 0 ? Below(60000) : Below(120), 'a' + Below(26)); }
};

// Compares some steps of two iterators from a key on.
void Walk(Random* random, Iterator* a, Iterator* b) {
  std::string key = random->Key();
  switch (random->Below(6)) {
    case 0:
      a->SeekToFirst();
      b->SeekToFirst();
      break;
    case 1:
      a->SeekToLast();
      b->SeekToLast();
      break;
    case 2:
    case 3:
      a->Seek(key);
      b->Seek(key);
      break;
    default:
      a->SeekForPrev(key);
      b->SeekForPrev(key);
  }
  for (uint64_t steps = random->Below(200); steps > 0; --steps) {
    CHECK(a->Valid() == b->Valid());
    if (!a->Valid()) {
      break;
    }
    CHECK(a->key() == b->key());
    CHECK(a->value() == b->value());
    // Mostly straight on, and back at times.
    bool up = steps % 64 < 40 || random->Below(4) == 0;
    if (up) {
      a->Next();
      b->Next();
    } else {
      a->Prev();
      b->Prev();
    }
  }
  CHECK_OK(a->status());
  CHECK_OK(b->status());
}

void CompareAll(const Two& two) {
  for (int f = 0; f < kFamilies; ++f) {
    std::unique_ptr<Iterator> a(two.ours->NewIterator(ReadOptions(), two.our_families[f]));
    std::unique_ptr<Iterator> b(two.theirs->NewIterator(ReadOptions(), two.their_families[f]));
    for (a->SeekToFirst(), b->SeekToFirst(); b->Valid(); a->Next(), b->Next()) {
      CHECK(a->Valid());
      CHECK(a->key() == b->key());
      CHECK(a->value() == b->value());
    }
    CHECK(!a->Valid());
    CHECK_OK(a->status());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = Fresh(Argument(argc, argv, "--folder", "/dev/shm"), "bristlecone-rocksdb-random");
  const uint64_t operations = std::stoull(Argument(argc, argv, "--operations", "1000000"));
  Random random{std::mt19937_64(std::stoull(Argument(argc, argv, "--seed", "1")))};
  Two two;
  Open(folder, &two);
  std::vector<std::pair<const Snapshot*, const Snapshot*>> snapshots;
  auto release = [&](size_t keep) {
    while (snapshots.size() > keep) {
      two.ours->ReleaseSnapshot(snapshots[0].first);
      two.theirs->ReleaseSnapshot(snapshots[0].second);
      snapshots.erase(snapshots.begin());
    }
  };
  uint64_t reads = 0, walks = 0, openings = 0;
  for (uint64_t i = 0; i < operations; ++i) {
    const int f = static_cast<int>(random.Below(kFamilies));
    ColumnFamilyHandle* our = two.our_families[f];
    ColumnFamilyHandle* their = two.their_families[f];
    const std::string key = random.Key();
    const WriteOptions write;
    ReadOptions ours, theirs;
    if (!snapshots.empty() && random.Below(2) == 0) {
      const auto& chosen = snapshots[random.Below(snapshots.size())];
      ours.snapshot = chosen.first;
      theirs.snapshot = chosen.second;
    }
    const uint64_t what = random.Below(1000);
    if (what < 300) {
      const std::string value = random.Value();
      CHECK_OK(two.ours->Put(write, our, key, value));
      CHECK_OK(two.theirs->Put(write, their, key, value));
    } else if (what < 360) {
      CHECK_OK(two.ours->Delete(write, our, key));
      CHECK_OK(two.theirs->Delete(write, their, key));
    } else if (what < 440) {
      const std::string operand = std::to_string(i);
      CHECK_OK(two.ours->Merge(write, our, key, operand));
      CHECK_OK(two.theirs->Merge(write, their, key, operand));
    } else if (what < 480) {
      WriteBatch a, b;
      for (uint64_t n = random.Below(12); n > 0; --n) {
        const std::string one = random.Key();
        const std::string value = random.Value();
        const size_t g = random.Below(kFamilies);
        if (random.Below(4) == 0) {
          CHECK_OK(a.Delete(two.our_families[g], one));
          CHECK_OK(b.Delete(two.their_families[g], one));
        } else {
          CHECK_OK(a.Put(two.our_families[g], one, value));
          CHECK_OK(b.Put(two.their_families[g], one, value));
        }
      }
      CHECK_OK(two.ours->Write(write, &a));
      CHECK_OK(two.theirs->Write(write, &b));
    } else if (what < 985) {
      std::string a, b;
      Status s = two.ours->Get(ours, our, key, &a);
      Status t = two.theirs->Get(theirs, their, key, &b);
      CHECK(s.code() == t.code());
      CHECK(a == b);
      ++reads;
    } else if (what < 995) {
      std::unique_ptr<Iterator> a(two.ours->NewIterator(ours, our));
      std::unique_ptr<Iterator> b(two.theirs->NewIterator(theirs, their));
      Walk(&random, a.get(), b.get());
      ++walks;
    } else if (what < 998) {
      snapshots.emplace_back(two.ours->GetSnapshot(), two.theirs->GetSnapshot());
      release(4);
    } else if (random.Below(20) == 0) {
      CHECK_OK(two.ours->Flush(FlushOptions(), our));
      CHECK_OK(two.theirs->Flush(FlushOptions(), their));
    } else if (random.Below(10) == 0) {
      release(0);
      Close(&two);
      Open(folder, &two);
      CompareAll(two);
      ++openings;
    }
  }
  release(0);
  CompareAll(two);
  CHECK(two.ours->DeleteRange(WriteOptions(), two.our_families[0], "a", "b").IsNotSupported());
  Close(&two);
  std::filesystem::remove_all(folder);
  std::printf("%llu operations, %llu reads, %llu walks, %llu openings: the same answers\n",
              static_cast<unsigned long long>(operations), static_cast<unsigned long long>(reads),
              static_cast<unsigned long long>(walks), static_cast<unsigned long long>(openings));
  return 0;
}
