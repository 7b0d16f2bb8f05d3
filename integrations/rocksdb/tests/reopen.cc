// What databases hold after a kill, a close or a failed opening, where it is not what was flushed.
//
//   reopen [--folder DIR] [--only NAME]

#include <rocksdb/comparator.h>
#include <rocksdb/utilities/backup_engine.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/utilities/options_util.h>
#include <rocksdb/utilities/transaction_db.h>
#include <rocksdb/write_batch.h>
#include <rocksdb/write_buffer_manager.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "bristlecone/rocksdb.h"
#include "support.h"

using namespace ::rocksdb;

namespace {

Options Base() {
  Options options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.merge_operator = std::make_shared<Append>();
  return options;
}

// A database with so many column families, at `folder`.
Status OpenAt(const std::string& folder, int families, const Options& options, Store* store) {
  std::vector<ColumnFamilyDescriptor> descriptors;
  for (int i = 0; i < families; ++i) {
    descriptors.emplace_back(i == 0 ? kDefaultColumnFamilyName : "family" + std::to_string(i), options);
  }
  return bristlecone::rocksdb::Open(options, folder + "/db", {folder + "/pool"}, descriptors, &store->families,
                                    &store->db);
}

Store Opened(const std::string& folder, int families = 1, const Options& options = Base()) {
  Store store;
  CHECK_OK(OpenAt(folder, families, options, &store));
  return store;
}

std::string Found(DB* db, ColumnFamilyHandle* family, const std::string& key) {
  std::string value;
  Status s = db->Get(ReadOptions(), family, key, &value);
  CHECK(s.ok() || s.IsNotFound());
  return s.ok() ? value : "";
}

std::string Found(const Store& store, int family, const std::string& key) {
  return Found(store.db, store.families[family], key);
}

// However many column families have a memtable, the next opening has places for them.
void ManyFamilies(const std::string& folder) {
  constexpr int kFamilies = 30;
  int written = 0;
  Apart([&] { Close(Opened(folder, kFamilies)); });
  Killed([&] {
    Store store = Opened(folder, kFamilies);
    while (written < kFamilies && store.db->Put(WriteOptions(), store.families[written], "k", "v").ok()) {
      ++written;
    }
    std::printf("%d of %d families got a memtable\n", written, kFamilies);
    CHECK(written >= 22);
  });
  for (int opening = 0; opening < 2; ++opening) {
    Killed([&] {
      Store store = Opened(folder, kFamilies);
      for (int i = 0; i < 22; ++i) {
        CHECK(Found(store, i, "k") == "v");
      }
      // More is refused until they are flushed, and changes nothing.
      WriteBatch batch;
      CHECK_OK(batch.Put(store.families[0], "half", "v"));
      CHECK_OK(batch.Put(store.families[28], "half", "v"));
      CHECK(store.db->Write(WriteOptions(), &batch).IsIOError());
      CHECK(Found(store, 0, "half").empty());
      CHECK_OK(store.db->Put(WriteOptions(), store.families[0], "one", "v"));
    });
  }
  Apart([&] {
    Store store = Opened(folder, kFamilies);
    CHECK(Found(store, 0, "half").empty());
    CHECK(Found(store, 0, "one") == "v");
    CHECK_OK(store.db->Flush(FlushOptions(), store.families));
    WriteBatch batch;
    CHECK_OK(batch.Put(store.families[0], "both", "v"));
    CHECK_OK(batch.Put(store.families[28], "both", "v"));
    CHECK_OK(store.db->Write(WriteOptions(), &batch));
    Close(store);
  });
}

// An opening that fails half-way leaves everything as it was.
void FailedOpening(const std::string& folder) {
  constexpr int kMerges = 3000;
  const std::string filler(1000, 'x');
  Killed([&] {
    Store store = Opened(folder);
    for (int i = 0; i < kMerges; ++i) {
      CHECK_OK(store.db->Merge(WriteOptions(), "key" + std::to_string(i), "once" + filler));
    }
  });
  for (int opening = 0; opening < 2; ++opening) {
    Apart([&] {
      // Memory for memtables is used up, so RocksDB switches one while it has a part of the entries.
      Options options = Base();
      options.write_buffer_manager = std::make_shared<WriteBufferManager>(1);
      Store store;
      CHECK(!OpenAt(folder, 1, options, &store).ok());
      // Nor are options changed that others may read.
      DBOptions kept;
      std::vector<ColumnFamilyDescriptor> families;
      CHECK_OK(LoadLatestOptions(ConfigOptions(), folder + "/db", &kept, &families));
      CHECK(!kept.avoid_flush_during_shutdown && families.size() == 1);
      CHECK(!families[0].options.disable_auto_compactions);
    });
  }
  Apart([&] {
    Store store = Opened(folder);
    for (int i = 0; i < kMerges; ++i) {
      CHECK(Found(store, 0, "key" + std::to_string(i)) == "once" + filler);
    }
    Close(store);
  });
}

// Threads fill a pool with large batches over two families: each is there wholly or not at all, and the
// ones that are refused leave the database as it was.
void Crowded(const std::string& folder) {
  constexpr int kThreads = 11;
  auto open = [&] {
    Store store;
    Options options = Base();
    options.write_buffer_size = 256 << 20;
    std::vector<ColumnFamilyDescriptor> families{{kDefaultColumnFamilyName, options}, {"family1", options}};
    CHECK_OK(bristlecone::rocksdb::Open(options, folder + "/db", {folder + "/pool", 48 << 20}, families,
                                        &store.families, &store.db));
    return store;
  };
  Killed([&] {
    Store store = open();
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Status s;
        for (int i = 0; s.ok(); ++i) {
          WriteBatch batch;
          const std::string key = "t" + std::to_string(t) + "i" + std::to_string(i);
          for (int part = 0; part < 4; ++part) {
            CHECK_OK(batch.Put(store.families[part % 2], key + "p" + std::to_string(part), std::string(100 << 10, 'v')));
          }
          s = store.db->Write(WriteOptions(), &batch);
        }
        CHECK(s.IsIOError() && s.ToString().find("is full") != std::string::npos);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK_OK(store.db->Flush(FlushOptions(), store.families));
    CHECK_OK(store.db->Put(WriteOptions(), "flushed", "v"));
  });
  Apart([&] {
    Store store = open();
    CHECK(Found(store, 0, "flushed") == "v");
    int seen = 0;
    std::unique_ptr<Iterator> it(store.db->NewIterator(ReadOptions(), store.families[0]));
    for (it->Seek("t"); it->Valid(); it->Next(), ++seen) {
      const std::string key = it->key().ToString();
      for (int part = 0; part < 4; ++part) {
        CHECK(Found(store, part % 2, key.substr(0, key.size() - 1) + std::to_string(part)).size() == 100 << 10);
      }
    }
    CHECK(seen > 50);
    it.reset();
    Close(store);
  });
}

// A write to a column family that was dropped is refused, and does no harm to others.
void Dropped(const std::string& folder) {
  Apart([&] {
    Store store = Opened(folder, 3);
    CHECK_OK(store.db->DropColumnFamily(store.families[1]));
    for (ColumnFamilyHandle* other : {store.families[0], store.families[2]}) {
      WriteBatch batch;
      CHECK_OK(batch.Put(other, "half", "v"));
      CHECK_OK(batch.Put(store.families[1], "half", "v"));
      CHECK(store.db->Write(WriteOptions(), &batch).IsInvalidArgument());
    }
    CHECK(store.db->Put(WriteOptions(), store.families[1], "k", "v").IsInvalidArgument());
    // Unless the caller wants what can be had.
    WriteOptions ignoring;
    ignoring.ignore_missing_column_families = true;
    WriteBatch batch;
    CHECK_OK(batch.Put(store.families[0], "some", "v"));
    CHECK_OK(batch.Put(store.families[1], "some", "v"));
    CHECK_OK(store.db->Write(ignoring, &batch));
    ColumnFamilyHandle* created;
    CHECK_OK(store.db->CreateColumnFamily(Base(), "family1", &created));
    CHECK_OK(store.db->Put(WriteOptions(), created, "k", "new"));
    store.families.push_back(created);
    Close(store);
  });
  Apart([&] {
    Store store = Opened(folder, 3);
    CHECK(Found(store, 0, "half").empty() && Found(store, 2, "half").empty());
    CHECK(Found(store, 0, "some") == "v");
    CHECK(Found(store, 1, "k") == "new");
    Close(store);
  });
}

// Families are dropped while others are written to: what is acknowledged is there.
void DroppedMeanwhile(const std::string& folder) {
  constexpr int kFamilies = 12, kThreads = 4;
  Apart([&] {
    Store store = Opened(folder, kFamilies);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 4000; ++i) {
          const std::string key = "t" + std::to_string(t) + "i" + std::to_string(i);
          CHECK_OK(store.db->Put(WriteOptions(), store.families[0], key, "v"));
          CHECK(Found(store, 0, key) == "v");
          Status s = store.db->Put(WriteOptions(), store.families[1 + i % (kFamilies - 1)], key, "v");
          CHECK(s.ok() || s.IsInvalidArgument());
        }
      });
    }
    for (int f = 1; f < kFamilies; ++f) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      CHECK_OK(store.db->DropColumnFamily(store.families[f]));
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    Close(store);
  });
}

// Keys in an order that is RocksDB's alone are there after a close without a flush.
void Reversed(const std::string& folder) {
  Options options = Base();
  options.comparator = ReverseBytewiseComparator();
  options.avoid_flush_during_shutdown = true;
  constexpr int kKeys = 500;
  for (int opening = 0; opening < 3; ++opening) {
    Apart([&] {
      Store store = Opened(folder, 2, options);
      for (int f = 0; f < 2; ++f) {
        std::unique_ptr<Iterator> it(store.db->NewIterator(ReadOptions(), store.families[f]));
        int seen = 0;
        for (it->SeekToFirst(); it->Valid(); it->Next(), ++seen) {
          CHECK(it->key() == std::to_string(10 * kKeys - seen - 1));
          CHECK(it->value() == std::to_string(f));
        }
        CHECK(seen == opening * kKeys);
        for (int i = opening * kKeys; i < (opening + 1) * kKeys; ++i) {
          CHECK_OK(store.db->Put(WriteOptions(), store.families[f], std::to_string(10 * kKeys - i - 1),
                                 std::to_string(f)));
        }
      }
      Close(store);
    });
  }
}

// Backups and checkpoints have what was acknowledged, although it is in no log.
void Backups(const std::string& folder) {
  Apart([&] {
    Store store = Opened(folder, 2);
    CHECK_OK(store.db->Put(WriteOptions(), store.families[0], "k", "v"));
    CHECK_OK(store.db->Put(WriteOptions(), store.families[1], "k", "v"));
    BackupEngine* engine;
    CHECK_OK(BackupEngine::Open(BackupEngineOptions(folder + "/backup"), Env::Default(), &engine));
    CHECK_OK(engine->CreateNewBackup(store.db));
    CHECK_OK(engine->RestoreDBFromLatestBackup(folder + "/restored", folder + "/restored"));
    delete engine;
    CHECK_OK(store.db->Put(WriteOptions(), store.families[0], "k2", "v"));
    Checkpoint* checkpoint;
    CHECK_OK(Checkpoint::Create(store.db, &checkpoint));
    CHECK_OK(checkpoint->CreateCheckpoint(folder + "/checkpoint", 1 << 30));
    delete checkpoint;
    CHECK_OK(store.db->Put(WriteOptions(), store.families[0], "k3", "v"));
    std::vector<std::string> files;
    uint64_t size;
    CHECK_OK(store.db->GetLiveFiles(files, &size, false));
    std::vector<LiveFileMetaData> tables;
    store.db->GetLiveFilesMetaData(&tables);
    CHECK(tables.size() >= 4);
    Close(store);
  });
  Apart([&] {
    std::vector<ColumnFamilyDescriptor> families{{kDefaultColumnFamilyName, Base()}, {"family1", Base()}};
    for (const char* name : {"/restored", "/checkpoint"}) {
      Store store;
      CHECK_OK(DB::Open(Base(), folder + name, families, &store.families, &store.db));
      CHECK(Found(store, 0, "k") == "v" && Found(store, 1, "k") == "v");
      CHECK(Found(store, 0, "k2") == (std::string(name) == "/checkpoint" ? "v" : ""));
      Close(store);
    }
  });
}

// A pool that is not the database's last one is refused, and so is none.
void WrongPool(const std::string& folder) {
  auto open = [&](const std::string& pool, bool new_pool, DB** db) {
    bristlecone::rocksdb::PoolOptions options{folder + "/" + pool};
    options.new_pool = new_pool;
    return bristlecone::rocksdb::Open(Base(), folder + "/db", options, db);
  };
  auto put = [&](const std::string& pool, bool new_pool, const std::string& value) {
    Killed([&] {
      DB* db;
      CHECK_OK(open(pool, new_pool, &db));
      CHECK_OK(db->Put(WriteOptions(), "k", value));
    });
  };
  put("pool", false, "first");
  Apart([&] {
    DB* db;
    CHECK(open("other", false, &db).IsInvalidArgument());
    CHECK(!std::filesystem::exists(folder + "/other"));
    // Another one that there is.
    CHECK_OK(bristlecone::rocksdb::Open(Base(), folder + "/another", {folder + "/other"}, &db));
    delete db;
    CHECK(open("other", false, &db).IsInvalidArgument());
    CHECK_OK(open("pool", false, &db));
    CHECK(Found(db, db->DefaultColumnFamily(), "k") == "first");
    delete db;
  });
  put("pool", false, "second");
  put("new", true, "third");
  Apart([&] {
    // The first pool's writes are older now.
    DB* db;
    CHECK(open("pool", false, &db).IsInvalidArgument());
    CHECK(open("pool", true, &db).IsInvalidArgument());
    CHECK_OK(open("new", false, &db));
    CHECK(Found(db, db->DefaultColumnFamily(), "k") == "third");
    delete db;
    // A database that was destroyed leaves its file, which says nothing of the next one.
    std::filesystem::remove(folder + "/new");
    CHECK_OK(DestroyDB(folder + "/db", Base()));
    CHECK(std::filesystem::exists(folder + "/db/BRISTLECONE_POOL"));
    CHECK_OK(open("new", false, &db));
    delete db;
  });
}

// An older state of the database that replaces it gets no writes of the pool that came after it.
void Restored(const std::string& folder) {
  Options options = Base();
  options.write_dbid_to_manifest = true;  // So it has the same identity, too.
  const std::string backup = folder + "/backup";
  Apart([&] {
    Store store = Opened(folder, 1, options);
    CHECK_OK(store.db->Put(WriteOptions(), "k", "older"));
    BackupEngine* engine;
    CHECK_OK(BackupEngine::Open(BackupEngineOptions(backup), Env::Default(), &engine));
    CHECK_OK(engine->CreateNewBackup(store.db));
    delete engine;
    Close(store);
  });
  Killed([&] {
    Store store = Opened(folder, 1, options);
    CHECK_OK(store.db->Merge(WriteOptions(), "k", "newer"));
  });
  Apart([&] {
    BackupEngine* engine;
    CHECK_OK(BackupEngine::Open(BackupEngineOptions(backup), Env::Default(), &engine));
    CHECK_OK(engine->RestoreDBFromLatestBackup(folder + "/db", folder + "/db"));
    delete engine;
    Store store;
    CHECK(OpenAt(folder, 1, options, &store).IsInvalidArgument());
    std::filesystem::remove(folder + "/pool");
    std::filesystem::remove(folder + "/pool.journal");
    store = Opened(folder, 1, options);
    CHECK(Found(store, 0, "k") == "older");
    Close(store);
  });
}

// Transactions write behind the database's back: it notices.
void Behind(const std::string& folder) {
  Apart([&] {
    Store store = Opened(folder);
    CHECK_OK(store.db->Put(WriteOptions(), "k", "v"));
    TransactionDB* transactions;
    CHECK_OK(TransactionDB::WrapStackableDB(static_cast<StackableDB*>(store.db), TransactionDBOptions(), {},
                                            store.families, &transactions));
    std::unique_ptr<Transaction> transaction(transactions->BeginTransaction(WriteOptions()));
    CHECK_OK(transaction->Put("k", "behind"));
    CHECK_OK(transaction->Commit());
    CHECK(store.db->Put(WriteOptions(), "k", "v").IsNotSupported());
    transaction.reset();
    CHECK_OK(store.db->DestroyColumnFamilyHandle(store.families[0]));
    delete transactions;
  });
}

// Options that would move entries from memtable to memtable are refused.
void Purges(const std::string& folder) {
  Apart([&] {
    Options options = Base();
    options.experimental_mempurge_threshold = 1;
    Store store;
    CHECK(OpenAt(folder, 1, options, &store).IsInvalidArgument());
    store = Opened(folder);
    CHECK(store.db->SetOptions({{"experimental_mempurge_threshold", "0.5"}}).IsInvalidArgument());
    CHECK_OK(store.db->SetOptions({{"experimental_mempurge_threshold", "0"}}));
    Close(store);
  });
}

}  // namespace

int main(int argc, char** argv) {
  return RunTests(argc, argv, "reopen", "as it was",
                  {{"families", &ManyFamilies}, {"failed", &FailedOpening}, {"crowded", &Crowded},
                   {"dropped", &Dropped}, {"meanwhile", &DroppedMeanwhile}, {"reversed", &Reversed},
                   {"backups", &Backups}, {"pools", &WrongPool}, {"restored", &Restored},
                   {"behind", &Behind}, {"purges", &Purges}});
}
