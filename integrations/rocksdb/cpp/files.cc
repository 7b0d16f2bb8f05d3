// Files of a database, whose manifest goes no further than its pool: see files.h.

#include "files.h"

#include <rocksdb/file_system.h>
#include <rocksdb/system_clock.h>

#include <string>
#include <utility>

namespace bristlecone {
namespace rocksdb {

using ::rocksdb::DataVerificationInfo;
using ::rocksdb::Env;
using ::rocksdb::EnvWrapper;
using ::rocksdb::FileOptions;
using ::rocksdb::FileSystem;
using ::rocksdb::FileSystemWrapper;
using ::rocksdb::FSWritableFile;
using ::rocksdb::FSWritableFileOwnerWrapper;
using ::rocksdb::IODebugContext;
using ::rocksdb::IOOptions;
using ::rocksdb::IOStatus;
using ::rocksdb::Slice;
using ::rocksdb::Status;

namespace {

class Manifest final : public FSWritableFileOwnerWrapper {
 public:
  Manifest(std::unique_ptr<FSWritableFile> file, std::shared_ptr<Pool> pool)
      : FSWritableFileOwnerWrapper(std::move(file)), pool_(std::move(pool)) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* context) override {
    IOStatus s = MayTake();
    return s.ok() ? FSWritableFileOwnerWrapper::Append(data, options, context) : s;
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const DataVerificationInfo& verification,
                  IODebugContext* context) override {
    IOStatus s = MayTake();
    return s.ok() ? FSWritableFileOwnerWrapper::Append(data, options, verification, context) : s;
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            IODebugContext* context) override {
    IOStatus s = MayTake();
    return s.ok() ? FSWritableFileOwnerWrapper::PositionedAppend(data, offset, options, context) : s;
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            const DataVerificationInfo& verification, IODebugContext* context) override {
    IOStatus s = MayTake();
    return s.ok() ? FSWritableFileOwnerWrapper::PositionedAppend(data, offset, options, verification, context) : s;
  }

 private:
  IOStatus MayTake() {
    Status s = pool_->Ended();
    if (s.ok()) {
      s = pool_->Commit();
    }
    // (RocksDB waits for room by itself.)
    return s.ok() ? IOStatus::OK() : s.IsNoSpace() ? IOStatus::NoSpace(s.ToString()) : IOStatus::IOError(s.ToString());
  }

  const std::shared_ptr<Pool> pool_;
};

class Files final : public FileSystemWrapper {
 public:
  Files(const std::shared_ptr<FileSystem>& files, std::shared_ptr<Pool> pool)
      : FileSystemWrapper(files), pool_(std::move(pool)) {}
  const char* Name() const override { return "bristlecone"; }

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<FSWritableFile>* file, IODebugContext* context) override {
    IOStatus s = FileSystemWrapper::NewWritableFile(path, options, file, context);
    if (s.ok() && path.compare(path.rfind('/') + 1, 9, "MANIFEST-") == 0) {
      *file = std::make_unique<Manifest>(std::move(*file), pool_);
    }
    return s;
  }

 private:
  const std::shared_ptr<Pool> pool_;
};

class Guarded final : public EnvWrapper {
 public:
  Guarded(Env* env, const std::shared_ptr<Pool>& pool) : EnvWrapper(env) {
    file_system_ = std::make_shared<Files>(env->GetFileSystem(), pool);
    system_clock_ = env->GetSystemClock();
  }
};

}  // namespace

std::shared_ptr<Env> GuardManifest(Env* env, const std::shared_ptr<Pool>& pool) {
  return std::make_shared<Guarded>(env, pool);
}

}  // namespace rocksdb
}  // namespace bristlecone
