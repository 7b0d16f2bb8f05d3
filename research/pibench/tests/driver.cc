// Loads the library like PiBench does, and compares every design with a map: threads with keys of
// their own insert, update, remove and find; then scans, a closed and reopened pool, bulk loading.
//
// driver LIBRARY FOLDER

#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bristlecone_pibench.h"
#include "tree_api.hpp"

namespace {

constexpr int kThreads = 4;
constexpr uint64_t kKeys = 2000;

std::string name;

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      std::fprintf(stderr, "%s: %s:%d: %s\n", name.c_str(), __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                                   \
    }                                                                                  \
  } while (false)

using Create = tree_api* (*)(const tree_options_t&);
using Map = std::map<uint64_t, uint64_t>;

// The key or value of a number in so many bytes: in the order of the numbers, whether it is compared
// as a number or as a string.
std::string text(uint64_t n, size_t size) {
  std::string text(size, '\0');
  if (size == 8) {
    std::memcpy(text.data(), &n, 8);
  } else {
    for (size_t i = 0; i < 8; ++i) {
      text[i] = static_cast<char>(n >> (56 - 8 * i));
    }
  }
  return text;
}

// What a thread does, on the keys that are its own.
void work(tree_api& tree, const tree_options_t& options, uint64_t thread, Map& mine) {
  std::mt19937_64 random(thread);
  std::string found(options.value_size, '\0');
  for (uint64_t n = 0; n < 20000; ++n) {
    const uint64_t k = random() % kKeys * kThreads + thread;
    const std::string key = text(k, options.key_size);
    const std::string value = text(n, options.value_size);
    const bool there = mine.count(k) != 0;
    switch (random() % 4) {
      case 0:
        CHECK(tree.insert(key.data(), key.size(), value.data(), value.size()) == !there);
        if (!there) mine[k] = n;
        break;
      case 1:
        CHECK(tree.update(key.data(), key.size(), value.data(), value.size()) == there);
        if (there) mine[k] = n;
        break;
      case 2:
        CHECK(tree.remove(key.data(), key.size()) == there);
        mine.erase(k);
        break;
      default:
        CHECK(tree.find(key.data(), key.size(), found.data()) == there);
        CHECK(!there || found == text(mine[k], options.value_size));
    }
  }
}

// Scans of every length from keys that are there or not.
void scan(tree_api& tree, const tree_options_t& options, const Map& all) {
  const size_t record = options.key_size + options.value_size;
  for (uint64_t from = 0; from < kKeys * kThreads + 10; from += 97) {
    const int most = static_cast<int>(from % 200);
    const std::string key = text(from, options.key_size);
    char* out = nullptr;
    const int scanned = tree.scan(key.data(), key.size(), most, out);
    auto at = all.lower_bound(from);
    int expected = 0;
    for (; expected < most && at != all.end(); ++expected, ++at) {
      const std::string entry = text(at->first, options.key_size) + text(at->second, options.value_size);
      CHECK(expected < scanned && std::memcmp(out + expected * record, entry.data(), record) == 0);
    }
    CHECK(scanned == expected);
  }
}

void design(Create create, const std::string& folder, size_t key_size, size_t value_size) {
  tree_options_t options;
  options.key_size = key_size;
  options.value_size = value_size;
  options.pool_path = folder + "/" + name + "-" + std::to_string(key_size);
  options.num_threads = kThreads;
  tree_api* tree = create(options);
  std::vector<Map> maps(kThreads);
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] { work(*tree, options, thread, maps[thread]); });
  }
  for (auto& thread : threads) thread.join();
  Map all;
  for (auto& map : maps) all.insert(map.begin(), map.end());
  scan(*tree, options, all);
  delete tree;
  tree = create(options);
  scan(*tree, options, all);
  delete tree;
  options.pool_path += "-loaded";
  std::string records;
  for (auto entry = all.rbegin(); entry != all.rend(); ++entry) {
    records += text(entry->first, key_size) + text(entry->second, value_size);
  }
  tree = create(options);
  CHECK(tree->bulk_load(records.data(), all.size(), key_size, value_size));
  scan(*tree, options, all);
  delete tree;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: driver LIBRARY FOLDER\n");
    return 2;
  }
  void* library = dlopen(argv[1], RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const auto create = reinterpret_cast<Create>(dlsym(library, "create_tree"));
  const auto names = reinterpret_cast<bool (*)(size_t, char*, size_t)>(dlsym(library, "bristlecone_pibench_design"));
  if (create == nullptr || names == nullptr) {
    std::fprintf(stderr, "%s: lacks create_tree or bristlecone_pibench_design\n", argv[1]);
    return 1;
  }
  char of[64];
  size_t designs = 0;
  for (; names(designs, of, sizeof of); ++designs) {
    name = of;
    setenv("BRISTLECONE_DESIGN", of, 1);
    design(create, argv[2], 8, 8);
    design(create, argv[2], 16, 32);
    std::printf("%s: as a map\n", of);
    std::fflush(stdout);
  }
  // Wrong settings make no tree, and the reason is told.
  setenv("BRISTLECONE_DESIGN", "lbtree-300", 1);
  tree_options_t options;
  options.pool_path = std::string(argv[2]) + "/wrong";
  CHECK(create(options) == nullptr && access(options.pool_path.c_str(), F_OK) != 0);
  setenv("BRISTLECONE_DESIGN", "lbtree", 1);
  options.pool_path.clear();
  CHECK(create(options) == nullptr);
  CHECK(designs > 10);
  std::printf("%zu designs\n", designs);
  return 0;
}
