// Figure 16 of LB+-Tree's paper: Get, sequential Put and random Put through RocksDB, with memtables of
// LB+-Tree and of the divided skip list in a pool; and beside them RocksDB's own skip list, whose
// writes a synced log makes durable.
//
//   bench [--folder DIR] [--load N] [--operations N] [--threads N]
//
// The engines take turns, in slices, so that a machine whose speed drifts slows all alike; each
// ratio is the median of those of the slices.

#include <rocksdb/filter_policy.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "bristlecone/rocksdb.h"
#include "support.h"

using namespace ::rocksdb;

namespace {

constexpr int kSlices = 20;

struct Engine {
  std::string name;
  DB* db = nullptr;
  WriteOptions write;
  // Nanoseconds an operation, slice by slice.
  std::vector<double> samples;
};

Options Base() {
  Options options;
  options.create_if_missing = true;
  options.write_buffer_size = size_t{16} << 30;
  options.compression = kNoCompression;
  return options;
}

Engine Scratch(const std::string& folder, const std::string& name, bristlecone::rocksdb::Index index) {
  Engine engine{name, nullptr, WriteOptions(), {}};
  Options options = Base();
  bristlecone::rocksdb::ScratchOptions scratch;
  scratch.path = folder + "/" + name + ".pool";
  scratch.index = index;
  scratch.bytewise = true;
  CHECK_OK(bristlecone::rocksdb::NewScratchFactory(scratch, &options.memtable_factory));
  options.avoid_flush_during_shutdown = true;
  CHECK_OK(DB::Open(options, folder + "/" + name, &engine.db));
  engine.write.disableWAL = true;
  return engine;
}

Engine Durable(const std::string& folder) {
  Engine engine{"LB+-Tree, durable", nullptr, WriteOptions(), {}};
  Options options = Base();
  options.avoid_flush_during_shutdown = true;
  CHECK_OK(bristlecone::rocksdb::Open(options, folder + "/durable", {folder + "/durable.pool"}, &engine.db));
  return engine;
}

Engine Logged(const std::string& folder) {
  Engine engine{"skip list, synced log", nullptr, WriteOptions(), {}};
  Options options = Base();
  options.avoid_flush_during_shutdown = true;
  CHECK_OK(DB::Open(options, folder + "/logged", &engine.db));
  engine.write.sync = true;
  return engine;
}

std::string Key(uint64_t number, size_t bytes) {
  std::string key(bytes, '0');
  // Big-endian, so that numbers in order are keys in order; the same start for the longer ones.
  for (int i = 0; i < 8; ++i) {
    key[bytes - 1 - i] = static_cast<char>(number >> (8 * i));
  }
  return key;
}

// Spreads numbers over all 64 bits, without meeting.
uint64_t Spread(uint64_t n) {
  n ^= n >> 31;
  n *= 0x7FB5D329728EA185;
  n ^= n >> 27;
  n *= 0x81DADEF4BC2DD44D;
  return n ^ (n >> 33);
}

void Load(DB* db, uint64_t load, size_t key_bytes) {
  WriteOptions options;
  options.disableWAL = true;
  const std::string value(20, 'v');
  for (uint64_t at = 0; at < load;) {
    WriteBatch batch;
    for (int i = 0; i < 100 && at < load; ++i, ++at) {
      CHECK_OK(batch.Put(Key(Spread(at), key_bytes), value));
    }
    CHECK_OK(db->Write(options, &batch));
  }
}

using Operation = std::function<void(Engine&, uint64_t)>;

// Does operations first .. first + count on some threads. Returns the nanoseconds an operation.
double Run(Engine& engine, uint64_t first, uint64_t count, int threads, const Operation& operation) {
  const auto begun = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  auto work = [&](int t) {
    for (uint64_t i = first + t; i < first + count; i += threads) {
      operation(engine, i);
    }
  };
  for (int t = 1; t < threads; ++t) {
    others.emplace_back(work, t);
  }
  work(0);
  for (std::thread& other : others) {
    other.join();
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begun;
  return took.count() / static_cast<double>(count);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The median over slices of how many times as long `a` took as `b`.
double Times(const Engine& a, const Engine& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.samples.size(); ++i) {
    ratios.push_back(a.samples[i] / b.samples[i]);
  }
  return Median(ratios);
}

void Measure(std::vector<Engine>& engines, uint64_t operations, int threads, const Operation& operation) {
  for (Engine& engine : engines) {
    engine.samples.clear();
  }
  const uint64_t slice = std::max<uint64_t>(operations / kSlices, threads);
  for (int s = 0; s < kSlices; ++s) {
    for (Engine& engine : engines) {
      engine.samples.push_back(Run(engine, s * slice, slice, threads, operation));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = Fresh(Argument(argc, argv, "--folder", "/dev/shm"), "bristlecone-rocksdb-bench");
  const uint64_t load = std::stoull(Argument(argc, argv, "--load", "1000000"));
  const uint64_t operations = std::stoull(Argument(argc, argv, "--operations", "100000"));
  const int threads = std::stoi(Argument(argc, argv, "--threads", "1"));
  std::printf("%llu entries loaded, then %llu operations of each kind, %d thread%s; values of 20 bytes\n",
              static_cast<unsigned long long>(load), static_cast<unsigned long long>(operations), threads,
              threads == 1 ? "" : "s");
  std::printf("%-5s %-14s %-24s %10s %s\n", "key", "operation", "memtable", "kops/s", "LB+-Tree is so many times as fast");
  for (size_t key_bytes : {size_t{8}, size_t{20}}) {
    std::vector<Engine> engines;
    engines.push_back(Scratch(folder, "LB+-Tree", bristlecone::rocksdb::Index::kTree));
    engines.push_back(Scratch(folder, "divided skip list", bristlecone::rocksdb::Index::kSkipList));
    engines.push_back(Durable(folder));
    engines.push_back(Logged(folder));
    for (Engine& engine : engines) {
      Load(engine.db, load, key_bytes);
    }
    const std::string value(20, 'w');
    const std::vector<std::pair<std::string, Operation>> kinds{
        {"Get",
         [&](Engine& engine, uint64_t i) {
           std::string found;
           CHECK_OK(engine.db->Get(ReadOptions(), Key(Spread(i * 7919 % load), key_bytes), &found));
         }},
        {"sequential Put",
         [&](Engine& engine, uint64_t i) {
           CHECK_OK(engine.db->Put(engine.write, Key((uint64_t{1} << 62) + i, key_bytes), value));
         }},
        {"random Put",
         [&](Engine& engine, uint64_t i) {
           CHECK_OK(engine.db->Put(engine.write, Key(Spread(load + i), key_bytes), value));
         }},
    };
    for (const auto& [name, operation] : kinds) {
      Measure(engines, operations, threads, operation);
      for (size_t e = 0; e < engines.size(); ++e) {
        // Of each pair, the second: what is compared is made durable alike.
        const Engine& ours = engines[e < 2 ? 0 : 2];
        std::printf("%-5zu %-14s %-24s %10.1f %.2f\n", key_bytes, name.c_str(), engines[e].name.c_str(),
                    1e6 / Median(engines[e].samples), Times(engines[e], ours));
      }
    }
    for (Engine& engine : engines) {
      delete engine.db;
    }
    Fresh(folder, "");
  }
  std::filesystem::remove_all(folder);
  return 0;
}
