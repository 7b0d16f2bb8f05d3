// Kills a writer, opens its database again, and looks for every write that it had acknowledged.
//
//   kill [--folder DIR] [--kills N] [--seed N]
//
// Each thread of the writer has keys of its own and makes operations that follow from its number and
// theirs: puts, deletions, merges, and batches over all column families. So what a thread's keys must
// hold after n operations can be computed, and after a kill they must hold that for n acknowledged
// operations, or for one more. Merges append, so that one that is replayed twice shows; a batch that
// is there in part is neither state.

#include <rocksdb/write_batch.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "bristlecone/rocksdb.h"
#include "support.h"

using namespace ::rocksdb;

namespace {

constexpr int kThreads = 3;
constexpr int kFamilies = 3;
constexpr int kKeys = 40;

// What the writer tells, in memory that outlives it.
struct Shared {
  std::atomic<uint64_t> acknowledged[kThreads];
  std::atomic<uint64_t> opened;
  // Whether the operation after the acknowledged ones was found, too.
  bool one_more[kThreads];
};

// One change of a key.
struct Change {
  enum Kind { kPut, kDelete, kMerge } kind;
  int family;
  std::string key;
  std::string value;
};

std::vector<Change> Operation(uint64_t seed, int thread, uint64_t n) {
  std::mt19937_64 random(seed ^ (n * 64 + static_cast<uint64_t>(thread)) * 0x9E3779B97F4A7C15);
  auto change = [&] {
    Change c;
    const uint64_t what = random() % 10;
    c.kind = what < 4 ? Change::kMerge : what < 9 ? Change::kPut : Change::kDelete;
    c.family = static_cast<int>(random() % kFamilies);
    c.key = "t" + std::to_string(thread) + "k" + std::to_string(random() % kKeys);
    c.value = std::to_string(n);
    if (c.kind == Change::kPut) {
      const size_t length = random() % 200 == 0 ? random() % 50000 : random() % 400;
      c.value += std::string(length, static_cast<char>('a' + n % 26));
    }
    return c;
  };
  std::vector<Change> changes;
  const size_t many = random() % 4 == 0 ? 2 + random() % 8 : 1;
  while (changes.size() < many) {
    changes.push_back(change());
  }
  return changes;
}

using State = std::map<std::pair<int, std::string>, std::string>;

void Apply(const std::vector<Change>& changes, State* state) {
  for (const Change& c : changes) {
    const std::pair<int, std::string> at(c.family, c.key);
    if (c.kind == Change::kPut) {
      (*state)[at] = c.value;
    } else if (c.kind == Change::kDelete) {
      state->erase(at);
    } else {
      auto [found, is_new] = state->emplace(at, c.value);
      if (!is_new) {
        found->second += "," + c.value;
      }
    }
  }
}

Store Open(const std::string& folder, bool atomic_flush) {
  DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.max_background_jobs = 4;
  options.atomic_flush = atomic_flush;
  std::vector<ColumnFamilyDescriptor> families;
  for (int i = 0; i < kFamilies; ++i) {
    ColumnFamilyOptions family;
    family.merge_operator = std::make_shared<Append>();
    family.write_buffer_size = 64 << 10;
    family.arena_block_size = 4 << 10;
    family.level0_file_num_compaction_trigger = 2;
    family.max_write_buffer_number = 4;
    families.emplace_back(i == 0 ? kDefaultColumnFamilyName : "family" + std::to_string(i), family);
  }
  Store store;
  CHECK_OK(bristlecone::rocksdb::Open(options, folder + "/db", {folder + "/pool"}, families, &store.families,
                                      &store.db));
  return store;
}

[[noreturn]] void Write(const std::string& folder, uint64_t seed, bool atomic_flush, Shared* shared) {
  Store store = Open(folder, atomic_flush);
  shared->opened.fetch_add(1);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t n = shared->acknowledged[t].load();; ++n) {
        WriteBatch batch;
        for (const Change& c : Operation(seed, t, n)) {
          ColumnFamilyHandle* family = store.families[c.family];
          if (c.kind == Change::kPut) {
            CHECK_OK(batch.Put(family, c.key, c.value));
          } else if (c.kind == Change::kDelete) {
            CHECK_OK(batch.Delete(family, c.key));
          } else {
            CHECK_OK(batch.Merge(family, c.key, c.value));
          }
        }
        CHECK_OK(store.db->Write(WriteOptions(), &batch));
        shared->acknowledged[t].store(n + 1);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::abort();  // they never end
}

// Runs `work` in a process of its own, and kills that after so many microseconds, counted from when
// `begun` holds.
template <typename Work, typename Begun>
void Kill(const Work& work, const Begun& begun, uint64_t microseconds) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    work();
    std::abort();  // it does not end
  }
  for (int waited = 0; !begun(); ++waited) {
    CHECK(waited < 60000);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  CHECK(kill(child, SIGKILL) == 0);
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

State Read(const Store& store, int thread) {
  State state;
  const std::string prefix = "t" + std::to_string(thread) + "k";
  for (int f = 0; f < kFamilies; ++f) {
    std::unique_ptr<Iterator> it(store.db->NewIterator(ReadOptions(), store.families[f]));
    for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
      state[{f, it->key().ToString()}] = it->value().ToString();
    }
    CHECK_OK(it->status());
  }
  return state;
}

// Tells the differences.
void Tell(const char* which, const State& found, const State& wanted) {
  auto end = [](const std::string& value) {
    return std::to_string(value.size()) + " bytes, ..." + value.substr(value.size() - std::min<size_t>(value.size(), 40));
  };
  State all = found;
  all.insert(wanted.begin(), wanted.end());
  for (const auto& [at, value] : all) {
    auto f = found.find(at);
    auto w = wanted.find(at);
    if (f == found.end() || w == wanted.end() || f->second != w->second) {
      std::fprintf(stderr, "%s: family %d %s: found %s, wanted %s\n", which, at.first, at.second.c_str(),
                   f == found.end() ? "nothing" : end(f->second).c_str(),
                   w == wanted.end() ? "nothing" : end(w->second).c_str());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = Fresh(Argument(argc, argv, "--folder", "/dev/shm"), "bristlecone-rocksdb-kill");
  const int kills = std::stoi(Argument(argc, argv, "--kills", "100"));
  const uint64_t seed = std::stoull(Argument(argc, argv, "--seed", "1"));
  auto* shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  CHECK(shared != MAP_FAILED);
  new (shared) Shared{};
  std::mt19937_64 random(seed);
  State states[kThreads];
  uint64_t written = 0, in_flight = 0, during_opening = 0;
  for (int kill_number = 0; kill_number < kills; ++kill_number) {
    const bool atomic_flush = kill_number % 3 == 2;
    uint64_t before[kThreads];
    for (int t = 0; t < kThreads; ++t) {
      before[t] = shared->acknowledged[t].load();
    }
    const uint64_t openings = shared->opened.load();
    Kill([&] { Write(folder, seed, atomic_flush, shared); }, [&] { return shared->opened.load() > openings; },
         random() % 300000);
    // The next ones are killed while they replay, or soon after.
    for (uint64_t more = random() % 3; more > 0; --more) {
      const uint64_t opened = shared->opened.load();
      auto only_open = [&] {
        Open(folder, atomic_flush);
        shared->opened.fetch_add(1);
        pause();
      };
      Kill(only_open, [] { return true; }, random() % 60000);
      during_opening += shared->opened.load() == opened ? 1 : 0;
    }
    for (int t = 0; t < kThreads; ++t) {
      const uint64_t acknowledged = shared->acknowledged[t].load();
      for (uint64_t n = before[t]; n < acknowledged; ++n) {
        Apply(Operation(seed, t, n), &states[t]);
      }
      written += acknowledged - before[t];
    }
    Apart([&] {
      Store store = Open(folder, atomic_flush);
      for (int t = 0; t < kThreads; ++t) {
        const State found = Read(store, t);
        State next = states[t];
        Apply(Operation(seed, t, shared->acknowledged[t].load()), &next);
        shared->one_more[t] = found != states[t];
        if (found != states[t] && found != next) {
          std::fprintf(stderr, "kill %d, thread %d, after %llu operations:\n", kill_number, t,
                       static_cast<unsigned long long>(shared->acknowledged[t].load()));
          Tell("without the next operation", found, states[t]);
          Tell("with it", found, next);
          std::exit(1);
        }
      }
      Close(store);
    });
    for (int t = 0; t < kThreads; ++t) {
      if (shared->one_more[t]) {
        Apply(Operation(seed, t, shared->acknowledged[t].fetch_add(1)), &states[t]);
        ++in_flight;
      }
    }
  }
  CHECK(written > 0);
  std::filesystem::remove_all(folder);
  std::printf("%d kills (%llu while opening), %llu acknowledged operations, none lost, %llu more were there\n",
              kills, static_cast<unsigned long long>(during_opening), static_cast<unsigned long long>(written),
              static_cast<unsigned long long>(in_flight));
  return 0;
}
