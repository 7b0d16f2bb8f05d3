// `create_tree`, which PiBench looks up in this library, and the tree that it makes.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bristlecone_pibench.h"
#include "tree_api.hpp"

namespace {

bristlecone_bytes bytes(const char* data, size_t len) {
  return {reinterpret_cast<const uint8_t*>(data), len};
}

class Tree final : public tree_api {
 public:
  Tree(bristlecone_pibench* tree, size_t record) : tree_(tree), record_(record) {}
  ~Tree() override { bristlecone_pibench_close(tree_); }

  // No `override`: headers of PiBench before its bulk loading have no such function.
  virtual bool bulk_load(const char* data, size_t records, size_t key_sz, size_t value_sz) {
    return key_sz + value_sz == record_ && bristlecone_pibench_load(tree_, bytes(data, records * record_));
  }

  bool find(const char* key, size_t sz, char* value_out) override {
    return bristlecone_pibench_find(tree_, bytes(key, sz), reinterpret_cast<uint8_t*>(value_out));
  }

  bool insert(const char* key, size_t key_sz, const char* value, size_t value_sz) override {
    return bristlecone_pibench_insert(tree_, bytes(key, key_sz), bytes(value, value_sz));
  }

  bool update(const char* key, size_t key_sz, const char* value, size_t value_sz) override {
    return bristlecone_pibench_update(tree_, bytes(key, key_sz), bytes(value, value_sz));
  }

  bool remove(const char* key, size_t key_sz) override {
    return bristlecone_pibench_remove(tree_, bytes(key, key_sz));
  }

  int scan(const char* key, size_t key_sz, int scan_sz, char*& values_out) override {
    // The caller reads them until its thread scans again.
    static thread_local std::vector<char> scanned;
    const size_t most = scan_sz > 0 ? static_cast<size_t>(scan_sz) : 0;
    if (scanned.size() < most * record_) {
      scanned.resize(most * record_);
    }
    values_out = scanned.data();
    return static_cast<int>(bristlecone_pibench_scan(tree_, bytes(key, key_sz), most,
                                                     reinterpret_cast<uint8_t*>(values_out)));
  }

 private:
  bristlecone_pibench* tree_;
  size_t record_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) tree_api* create_tree(const tree_options_t& options) {
  const char* chosen = std::getenv("BRISTLECONE_DESIGN");
  const std::string design = chosen != nullptr && *chosen != '\0' ? chosen : "lbtree";
  char message[1024] = "--pool_path is empty; give a file, on persistent memory for example";
  bristlecone_pibench* tree = nullptr;
  if (!options.pool_path.empty()) {
    tree = bristlecone_pibench_open(bytes(design.data(), design.size()),
                                    bytes(options.pool_path.data(), options.pool_path.size()), options.pool_size,
                                    options.key_size, options.value_size, options.num_threads, message,
                                    sizeof message);
  }
  if (tree == nullptr) {
    // PiBench ends then.
    std::fprintf(stderr, "bristlecone-pibench: %s\n", message);
    return nullptr;
  }
  return new Tree(tree, options.key_size + options.value_size);
}
