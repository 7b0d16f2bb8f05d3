// Registers the factory with RocksDB's object registry when the library is loaded, so that programs
// that know nothing of it can name it: `db_bench --memtablerep=bristlecone`.

#include <rocksdb/utilities/object_registry.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "bristlecone/rocksdb.h"

namespace bristlecone {
namespace rocksdb {
namespace {

using ::rocksdb::MemTableRepFactory;

constexpr char kName[] = "bristlecone";

// A factory of the registry is owned by its caller alone.
class Owned final : public MemTableRepFactory {
 public:
  explicit Owned(std::shared_ptr<MemTableRepFactory> factory) : factory_(std::move(factory)) {}
  const char* Name() const override { return kName; }
  ::rocksdb::MemTableRep* CreateMemTableRep(const ::rocksdb::MemTableRep::KeyComparator& comparator,
                                            ::rocksdb::Allocator* allocator,
                                            const ::rocksdb::SliceTransform* transform,
                                            ::rocksdb::Logger* logger) override {
    return factory_->CreateMemTableRep(comparator, allocator, transform, logger);
  }
  ::rocksdb::MemTableRep* CreateMemTableRep(const ::rocksdb::MemTableRep::KeyComparator& comparator,
                                            ::rocksdb::Allocator* allocator,
                                            const ::rocksdb::SliceTransform* transform,
                                            ::rocksdb::Logger* logger, uint32_t family) override {
    return factory_->CreateMemTableRep(comparator, allocator, transform, logger, family);
  }
  bool IsInsertConcurrentlySupported() const override { return true; }
  bool CanHandleDuplicatedKey() const override { return true; }

 private:
  const std::shared_ptr<MemTableRepFactory> factory_;
};

MemTableRepFactory* Make(const std::string& uri, std::unique_ptr<MemTableRepFactory>* guard, std::string* message) {
  ScratchOptions options;
  const char* path = std::getenv("BRISTLECONE_ROCKSDB_POOL");
  options.path = path != nullptr ? path : "/dev/shm/bristlecone-rocksdb-" + std::to_string(getpid());
  const size_t colon = uri.find(':');
  std::istringstream words(colon == std::string::npos ? "" : uri.substr(colon + 1));
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "bytewise") {
      options.bytewise = true;
    } else if (word == "skiplist") {
      options.index = Index::kSkipList;
    } else {
      *message = uri + ": no option " + word + "; there are bytewise and skiplist";
      return nullptr;
    }
  }
  std::shared_ptr<MemTableRepFactory> factory;
  ::rocksdb::Status s = NewScratchFactory(options, &factory);
  if (!s.ok()) {
    *message = uri + ": " + s.ToString();
    return nullptr;
  }
  guard->reset(new Owned(std::move(factory)));
  return guard->get();
}

[[maybe_unused]] const auto& registered = ::rocksdb::ObjectLibrary::Default()->AddFactory<MemTableRepFactory>(
    ::rocksdb::ObjectLibrary::PatternEntry(kName, true).AddSeparator(":"), &Make);

}  // namespace
}  // namespace rocksdb
}  // namespace bristlecone
