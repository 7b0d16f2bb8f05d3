// The interface that PiBench loads trees by, in the same binary layout. Build with PiBench's own
// header instead where its sources are at hand (`--include`).
#ifndef __TREE_API_HPP__
#define __TREE_API_HPP__

#include <cstddef>
#include <string>

struct tree_options_t {
  size_t key_size = 8;
  size_t value_size = 8;
  std::string pool_path = "";
  size_t pool_size = 0;
  size_t num_threads = 1;
};

class tree_api {
 public:
  virtual ~tree_api() {}
  // Fills the empty tree from keys and values, one after the other.
  virtual bool bulk_load(const char* /*data*/, size_t /*records*/, size_t /*key_sz*/, size_t /*value_sz*/) {
    return false;
  }
  virtual bool find(const char* key, size_t sz, char* value_out) = 0;
  virtual bool insert(const char* key, size_t key_sz, const char* value, size_t value_sz) = 0;
  virtual bool update(const char* key, size_t key_sz, const char* value, size_t value_sz) = 0;
  virtual bool remove(const char* key, size_t key_sz) = 0;
  // Points `values_out` at the entries from `key` on, keys and values one after the other.
  virtual int scan(const char* key, size_t key_sz, int scan_sz, char*& values_out) = 0;
};

extern "C" tree_api* create_tree(const tree_options_t& options);

#endif
