// Kills a process at each sync of its manifest: after RocksDB has recorded a flush, and before it has
// told the memtables. Every merge must be there once after the next opening, and no older value where
// one flush was of two memtables.
//
//   between [--folder DIR]

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "bristlecone/rocksdb.h"
#include "manifests.h"
#include "support.h"

using namespace ::rocksdb;

namespace {

// Syncs that are left; the process ends at the last one.
int syncs_left = 0;

// Kills the process at the last sync that is left.
void Count(const IOStatus& synced) {
  if (synced.ok() && --syncs_left == 0) {
    raise(SIGKILL);
  }
}

Options Base(Env* env) {
  Options options;
  options.create_if_missing = true;
  options.merge_operator = std::make_shared<Append>();
  options.env = env;
  options.level0_file_num_compaction_trigger = 2;
  return options;
}

// Merges and flushes, again and again, until the process ends.
void Work(const std::string& folder, int syncs) {
  syncs_left = syncs;
  std::unique_ptr<Env> env = WatchingManifests(&Count);
  DB* db;
  CHECK_OK(bristlecone::rocksdb::Open(Base(env.get()), folder + "/db", {folder + "/pool"}, &db));
  for (int i = 0; i < 20; ++i) {
    CHECK_OK(db->Merge(WriteOptions(), "key", std::to_string(i)));
    CHECK_OK(db->Put(WriteOptions(), "count", std::to_string(i)));
    CHECK_OK(db->Flush(FlushOptions()));
  }
  delete db;
}

// Puts the same keys into two memtables, of which one flush makes one file, again and again. Nothing of
// the older memtable gets into the file, not even its sequence numbers.
void WorkInPairs(const std::string& folder, int syncs) {
  syncs_left = syncs;
  std::unique_ptr<Env> env = WatchingManifests(&Count);
  Options options = Base(env.get());
  options.max_write_buffer_number = 4;
  DB* db;
  CHECK_OK(bristlecone::rocksdb::Open(options, folder + "/db", {folder + "/pool"}, &db));
  for (int i = 0; i < 10; ++i) {
    CHECK_OK(db->PauseBackgroundWork());
    for (const char* which : {"older", "newer"}) {
      for (int key = 0; key < 50; ++key) {
        CHECK_OK(db->Put(WriteOptions(), "key" + std::to_string(key), which));
      }
      if (which == std::string("newer")) {
        CHECK_OK(db->Merge(WriteOptions(), "merged", std::to_string(i)));
      }
      FlushOptions switching;
      switching.wait = false;
      switching.allow_write_stall = true;
      CHECK_OK(db->Flush(switching));
    }
    CHECK_OK(db->ContinueBackgroundWork());
    CHECK_OK(db->Flush(FlushOptions()));
  }
  delete db;
}

void CheckPairs(const std::string& folder) {
  DB* db;
  CHECK_OK(bristlecone::rocksdb::Open(Base(Env::Default()), folder + "/db", {folder + "/pool"}, &db));
  std::string found, merged, wanted;
  for (int key = 0; key < 50; ++key) {
    Status s = db->Get(ReadOptions(), "key" + std::to_string(key), &found);
    CHECK(s.IsNotFound() || (s.ok() && found == "newer"));
  }
  Status s = db->Get(ReadOptions(), "merged", &merged);
  CHECK(s.ok() || s.IsNotFound());
  for (int i = 0; wanted.size() < merged.size(); ++i) {
    wanted += (i == 0 ? "" : ",") + std::to_string(i);
  }
  CHECK(merged == wanted);
  delete db;
}

void Check(const std::string& folder) {
  DB* db;
  CHECK_OK(bristlecone::rocksdb::Open(Base(Env::Default()), folder + "/db", {folder + "/pool"}, &db));
  std::string count, found, wanted;
  Status s = db->Get(ReadOptions(), "key", &found);
  if (s.ok()) {
    // A merge comes before its count, and the sync of a compaction may be between the two.
    const int last = db->Get(ReadOptions(), "count", &count).ok() ? std::stoi(count) : -1;
    std::string next;
    for (int i = 0; i <= last + 1; ++i) {
      wanted = next;
      next += (i == 0 ? "" : ",") + std::to_string(i);
    }
    CHECK(found == wanted || found == next);
  } else {
    CHECK(s.IsNotFound());
  }
  delete db;
}

// Kills `work` at each of its syncs, and has `check` look at what it left. Returns the number of kills.
int KillAtEach(const std::string& at, void (*work)(const std::string&, int), void (*check)(const std::string&)) {
  int killed = 0;
  for (int syncs = 1;; ++syncs) {
    const std::string folder = Fresh(at, "bristlecone-rocksdb-between");
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      work(folder, syncs);
      _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) {
      CHECK(WEXITSTATUS(status) == 0);
      std::filesystem::remove_all(folder);
      return killed;  // there are no more syncs
    }
    ++killed;
    // Opened twice: what the first opening makes of it must hold, too.
    for (int opening = 0; opening < 2; ++opening) {
      Apart([&] { check(folder); });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string at = Argument(argc, argv, "--folder", "/dev/shm");
  const int killed = KillAtEach(at, &Work, &Check);
  CHECK(killed > 20);
  const int in_pairs = KillAtEach(at, &WorkInPairs, &CheckPairs);
  CHECK(in_pairs > 10);
  std::printf("%d kills between manifest and memtables: every merge is there once, and the newest value\n",
              killed + in_pairs);
  return 0;
}
