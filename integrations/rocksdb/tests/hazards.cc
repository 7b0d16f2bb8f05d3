// What was acknowledged is there once, and a batch wholly or not at all: where the pool's disk refuses,
// where RocksDB would refuse a write, and where many threads write.
//
//   hazards [--folder DIR] [--only NAME]
//
// Pools on a disk only, not on tmpfs, have a journal that can refuse.

#include <rocksdb/comparator.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/write_batch.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "bristlecone/rocksdb.h"
#include "manifests.h"
#include "support.h"

using namespace ::rocksdb;

namespace {

// Writes no file, which the system may refuse: RocksDB's own logger ends the process then.
class Silent : public Logger {
 public:
  using Logger::Logv;
  void Logv(const char*, va_list) override {}
};

Options Base() {
  Options options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.info_log = std::make_shared<Silent>();
  options.merge_operator = std::make_shared<Append>();
  return options;
}

// A database with so many column families, at `folder`.
Store Opened(const std::string& folder, int families = 1, const Options& options = Base()) {
  std::vector<ColumnFamilyDescriptor> descriptors;
  for (int i = 0; i < families; ++i) {
    descriptors.emplace_back(i == 0 ? kDefaultColumnFamilyName : "family" + std::to_string(i), options);
  }
  Store store;
  CHECK_OK(bristlecone::rocksdb::Open(options, folder + "/db", {folder + "/pool"}, descriptors, &store.families,
                                      &store.db));
  return store;
}

std::string Found(const Store& store, int family, const std::string& key) {
  std::string value;
  Status s = store.db->Get(ReadOptions(), store.families[family], key, &value);
  CHECK(s.ok() || s.IsNotFound());
  return s.ok() ? value : "";
}

bool IsOnTmpfs(const std::string& folder) {
  struct statfs found;
  CHECK(statfs(folder.c_str(), &found) == 0);
  return found.f_type == 0x01021994;
}

// Has the system refuse to write to files behind their first page, or no longer.
void SetRefusing(bool refusing) {
  rlimit limit;
  CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  limit.rlim_cur = refusing ? 4096 : limit.rlim_max;
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  signal(SIGXFSZ, SIG_IGN);
}

// The pool's disk refuses a write: no flush after it makes durable what the next opening replays.
void Refusing(const std::string& folder) {
  if (IsOnTmpfs(folder)) {
    return;
  }
  enum Then { kCloses, kFlushes, kFlushesLittle };
  for (Then then : {kCloses, kFlushes, kFlushesLittle}) {
    const std::string at = Fresh(folder, std::to_string(then));
    auto work = [&] {
      Options options = Base();
      options.paranoid_checks = then != kFlushes;
      Store store = Opened(at, 2, options);
      const int merges = then == kFlushesLittle ? 1 : 3;
      for (int i = 0; i < merges; ++i) {
        CHECK_OK(store.db->Merge(WriteOptions(), store.families[0], "k", std::to_string(i)));
      }
      CHECK_OK(store.db->Merge(WriteOptions(), store.families[1], "k", "0"));
      SetRefusing(true);
      CHECK(store.db->Merge(WriteOptions(), store.families[0], "other", "0").IsIOError());
      SetRefusing(false);
      CHECK(store.db->Merge(WriteOptions(), store.families[0], "k", "more").IsIOError());
      if (then == kCloses) {
        Close(store);
        return;
      }
      CHECK(!store.db->Flush(FlushOptions(), store.families).ok());
      CHECK(Found(store, 0, "k") == (merges == 1 ? "0" : "0,1,2"));
    };
    then == kCloses ? Apart(work) : Killed(work);
    for (int opening = 0; opening < 2; ++opening) {
      Apart([&] {
        Store store = Opened(at, 2);
        CHECK(Found(store, 0, "k") == (then == kFlushesLittle ? "0" : "0,1,2"));
        CHECK(Found(store, 1, "k") == "0");
        Close(store);
      });
    }
  }
}

// The disk refuses the mark of a memtable whose flush is in the manifest: no compaction may take the file
// from there, because by it the next opening knows that the memtable was flushed.
void Unmarked(const std::string& folder) {
  if (IsOnTmpfs(folder)) {
    return;
  }
  Killed([&] {
    // The system refuses from the next sync of a manifest on.
    std::atomic<bool> refuses_next = false;
    std::unique_ptr<Env> env = WatchingManifests([&](const IOStatus&) {
      if (refuses_next) {
        SetRefusing(true);
      }
    });
    Options options = Base();
    options.env = env.get();
    options.disable_auto_compactions = true;
    Store store = Opened(folder, 1, options);
    CHECK(store.db->GetEnv() == env.get() && store.db->GetOptions().env == env.get());
    CHECK_OK(store.db->Merge(WriteOptions(), "k", "0"));
    CHECK_OK(store.db->Flush(FlushOptions()));
    CHECK_OK(store.db->Merge(WriteOptions(), "k", "1"));
    refuses_next = true;
    store.db->Flush(FlushOptions()).PermitUncheckedError();
    refuses_next = false;
    SetRefusing(false);
    CHECK(store.db->Merge(WriteOptions(), "k", "more").IsIOError());
    CHECK(!store.db->CompactRange(CompactRangeOptions(), nullptr, nullptr).ok());
  });
  for (int opening = 0; opening < 2; ++opening) {
    Apart([&] {
      Store store = Opened(folder);
      CHECK(Found(store, 0, "k") == "0,1");
      Close(store);
    });
  }
}

// Writes that RocksDB would refuse half-way, where many write at once, are refused before.
void WithoutMerges(const std::string& folder) {
  constexpr int kThreads = 8, kKeys = 300;
  Options options = Base();
  options.merge_operator = nullptr;
  auto key = [](int thread, int i) { return "t" + std::to_string(thread) + "i" + std::to_string(i); };
  Killed([&] {
    Store store = Opened(folder, 1, options);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kKeys; ++i) {
          CHECK_OK(store.db->Put(WriteOptions(), key(t, i), "v"));
          if (t == 0) {
            CHECK(store.db->Merge(WriteOptions(), "merged", "v").IsNotSupported());
          }
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    WriteBatch batch;
    CHECK_OK(batch.Put("half", "v"));
    CHECK_OK(batch.Merge("merged", "v"));
    CHECK(store.db->Write(WriteOptions(), &batch).IsNotSupported());
    // An entry with a checksum, which is wrong.
    WriteBatch checked(0, 0, 8, 0);
    CHECK_OK(checked.Put("half", "v"));
    CHECK_OK(checked.Put("other half", "v"));
    CHECK_OK(store.db->Write(WriteOptions(), &checked));
    CHECK_OK(store.db->Delete(WriteOptions(), "half"));
    const_cast<char&>(checked.Data().back()) ^= 1;
    CHECK(store.db->Write(WriteOptions(), &checked).IsCorruption());
    CHECK_OK(store.db->Put(WriteOptions(), "last", "v"));
  });
  Apart([&] {
    Store store = Opened(folder, 1, options);
    for (int t = 0; t < kThreads; ++t) {
      for (int i = 0; i < kKeys; ++i) {
        CHECK(Found(store, 0, key(t, i)) == "v");
      }
    }
    CHECK(Found(store, 0, "last") == "v");
    CHECK(Found(store, 0, "half").empty() && Found(store, 0, "merged").empty());
    Close(store);
  });
}

// The order of bytes, which takes its time: so writes meet, and RocksDB makes groups of them.
class Slow : public Comparator {
 public:
  const char* Name() const override { return "slow"; }
  int Compare(const Slice& a, const Slice& b) const override {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(10);
    while (std::chrono::steady_clock::now() < end) {
    }
    return a.compare(b);
  }
  void FindShortestSeparator(std::string*, const Slice&) const override {}
  void FindShortSuccessor(std::string*) const override {}
};

// Writes to a family that was dropped, by threads to which that is all the same, are no part of others.
void ToNowhere(const std::string& folder) {
  constexpr int kThreads = 8, kKeys = 500;
  const Slow slow;
  Options options = Base();
  options.comparator = &slow;
  options.allow_concurrent_memtable_write = false;
  Apart([&] {
    Store store = Opened(folder, 2, options);
    CHECK_OK(store.db->DropColumnFamily(store.families[1]));
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        WriteOptions ignoring;
        ignoring.ignore_missing_column_families = true;
        for (int i = 0; i < kKeys; ++i) {
          const std::string key = "t" + std::to_string(t) + "i" + std::to_string(i);
          if (t < 2) {
            CHECK_OK(store.db->Put(ignoring, store.families[1], key, "v"));
          } else {
            CHECK_OK(store.db->Put(WriteOptions(), store.families[0], key, "v"));
            CHECK(Found(store, 0, key) == "v");
          }
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK_OK(store.db->Flush(FlushOptions()));
    Close(store);
  });
}

// Checkpoints have as much of one column family as of the others, while batches over them are written.
void OfOneMoment(const std::string& folder) {
  constexpr int kThreads = 3, kCheckpoints = 15;
  Apart([&] {
    Store store = Opened(folder, 2);
    std::atomic<bool> ended{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; !ended.load(); ++i) {
          WriteBatch batch;
          CHECK_OK(batch.Put(store.families[0], "t" + std::to_string(t), std::to_string(i)));
          CHECK_OK(batch.Put(store.families[1], "t" + std::to_string(t), std::to_string(i)));
          CHECK_OK(store.db->Write(WriteOptions(), &batch));
        }
      });
    }
    Checkpoint* checkpoint;
    CHECK_OK(Checkpoint::Create(store.db, &checkpoint));
    for (int i = 0; i < kCheckpoints; ++i) {
      CHECK_OK(checkpoint->CreateCheckpoint(folder + "/checkpoint" + std::to_string(i)));
    }
    delete checkpoint;
    ended.store(true);
    for (std::thread& thread : threads) {
      thread.join();
    }
    Close(store);
  });
  Apart([&] {
    std::vector<ColumnFamilyDescriptor> families{{kDefaultColumnFamilyName, Base()}, {"family1", Base()}};
    int seen = 0;
    for (int i = 0; i < kCheckpoints; ++i) {
      Store store;
      CHECK_OK(DB::Open(Base(), folder + "/checkpoint" + std::to_string(i), families, &store.families, &store.db));
      for (int t = 0; t < kThreads; ++t) {
        const std::string key = "t" + std::to_string(t);
        CHECK(Found(store, 0, key) == Found(store, 1, key));
        seen += Found(store, 0, key).empty() ? 0 : 1;
      }
      Close(store);
    }
    CHECK(seen > kCheckpoints);
  });
}

// A batch gets its turn among threads that put single entries all the time.
void Turns(const std::string& folder) {
  constexpr int kThreads = 16;
  Apart([&] {
    Options options = Base();
    options.write_buffer_size = 1 << 20;
    Store store = Opened(folder, 1, options);
    std::atomic<bool> ended{false};
    std::atomic<uint64_t> puts{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        while (!ended.load() && puts.load() < 500000) {
          CHECK_OK(store.db->Put(WriteOptions(), "t" + std::to_string(t), "v"));
          puts.fetch_add(1);
        }
      });
    }
    constexpr int kBatches = 20;
    uint64_t most = 0;
    for (int i = 0; i < kBatches; ++i) {
      while (puts.load() < static_cast<uint64_t>(i) * 2000) {
        std::this_thread::yield();
      }
      WriteBatch batch;
      CHECK_OK(batch.Put("one", "v"));
      CHECK_OK(batch.Put("two", "v"));
      const uint64_t before = puts.load();
      CHECK_OK(store.db->Write(WriteOptions(), &batch));
      most = std::max(most, puts.load() - before);
    }
    ended.store(true);
    for (std::thread& thread : threads) {
      thread.join();
    }
    std::printf("at most %llu of %llu puts were between a batch's beginning and end\n",
                static_cast<unsigned long long>(most), static_cast<unsigned long long>(puts.load()));
    CHECK(most < 2000);
    Close(store);
  });
}

// Blocks that are larger than memtables neither fill these nor keep a replay from its end.
void LargeBlocks(const std::string& folder) {
  Options options = Base();
  options.arena_block_size = 1 << 20;
  options.write_buffer_size = 256 << 10;
  auto files = [](const Store& store) {
    std::vector<LiveFileMetaData> tables;
    store.db->GetLiveFilesMetaData(&tables);
    return tables.size();
  };
  Killed([&] {
    Store store = Opened(folder, 1, options);
    for (int i = 0; i < 100; ++i) {
      CHECK_OK(store.db->Merge(WriteOptions(), "k" + std::to_string(i), "v"));
    }
    CHECK(files(store) == 0);
  });
  Killed([&] {
    Store store = Opened(folder, 1, options);
    for (int i = 0; i < 100; ++i) {
      CHECK(Found(store, 0, "k" + std::to_string(i)) == "v");
    }
    CHECK_OK(store.db->SetOptions({{"write_buffer_size", "131072"}, {"arena_block_size", "1048576"}}));
    CHECK_OK(store.db->Flush(FlushOptions()));
    const size_t before = files(store);
    for (int i = 0; i < 100; ++i) {
      CHECK_OK(store.db->Put(WriteOptions(), "k" + std::to_string(i), "w"));
    }
    CHECK(files(store) == before);
  });
  Apart([&] {
    Store store = Opened(folder, 1, options);
    CHECK(Found(store, 0, "k99") == "w");
    Close(store);
  });
}

// The order of bytes. Once it is asked for while a batch is armed, it changes the batch's last byte.
class Changing : public Comparator {
 public:
  const char* Name() const override { return "changing"; }
  int Compare(const Slice& a, const Slice& b) const override {
    if (std::string* bytes = armed.exchange(nullptr)) {
      bytes->back() ^= 1;
    }
    return a.compare(b);
  }
  void FindShortestSeparator(std::string*, const Slice&) const override {}
  void FindShortSuccessor(std::string*) const override {}

  mutable std::atomic<std::string*> armed{nullptr};
};

// RocksDB refuses a batch when it has inserted an entry: neither a flush nor a close makes that durable.
void HalfWay(const std::string& folder) {
  const Changing changing;
  Options options = Base();
  options.comparator = &changing;
  for (bool flushes : {false, true}) {
    const std::string at = Fresh(folder, flushes ? "flushes" : "closes");
    Apart([&] {
      Store store = Opened(at, 1, options);
      for (int i = 0; i < 200; ++i) {
        // (A search compares keys when there are several leaves.)
        CHECK_OK(store.db->Merge(WriteOptions(), "k" + std::to_string(i), "v"));
      }
      WriteBatch batch(0, 0, 8, 0);
      CHECK_OK(batch.Put("a", "v"));
      CHECK_OK(batch.Put("b", "v"));
      changing.armed.store(const_cast<std::string*>(&batch.Data()));
      Status s = store.db->Write(WriteOptions(), &batch);
      CHECK(Found(store, 0, "a") == "v");
      CHECK(s.IsIOError() && s.ToString().find("half-way") != std::string::npos);
      CHECK(store.db->Put(WriteOptions(), "more", "v").IsIOError());
      if (flushes) {
        CHECK(!store.db->Flush(FlushOptions()).ok());
      }
      Close(store);
    });
    for (int opening = 0; opening < 2; ++opening) {
      Apart([&] {
        Store store = Opened(at, 1, options);
        CHECK(Found(store, 0, "a").empty() && Found(store, 0, "b").empty() && Found(store, 0, "more").empty());
        for (int i = 0; i < 200; ++i) {
          CHECK(Found(store, 0, "k" + std::to_string(i)) == "v");
        }
        Close(store);
      });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return RunTests(argc, argv, "hazards", "there once",
                  {{"refusing", &Refusing}, {"unmarked", &Unmarked}, {"merges", &WithoutMerges},
                   {"nowhere", &ToNowhere}, {"moment", &OfOneMoment}, {"turns", &Turns},
                   {"blocks", &LargeBlocks}, {"half-way", &HalfWay}});
}
