// An environment that tells of each sync of a manifest, by which RocksDB makes a flush or a compaction
// count.

#pragma once

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

// Called with the outcome of a sync.
using Synced = std::function<void(const ::rocksdb::IOStatus&)>;

class WatchedManifest : public ::rocksdb::FSWritableFileOwnerWrapper {
 public:
  WatchedManifest(std::unique_ptr<::rocksdb::FSWritableFile> file, const Synced& synced)
      : FSWritableFileOwnerWrapper(std::move(file)), synced_(synced) {}
  ::rocksdb::IOStatus Sync(const ::rocksdb::IOOptions& options, ::rocksdb::IODebugContext* context) override {
    return Told(FSWritableFileOwnerWrapper::Sync(options, context));
  }
  ::rocksdb::IOStatus Fsync(const ::rocksdb::IOOptions& options, ::rocksdb::IODebugContext* context) override {
    return Told(FSWritableFileOwnerWrapper::Fsync(options, context));
  }

 private:
  ::rocksdb::IOStatus Told(::rocksdb::IOStatus s) {
    synced_(s);
    return s;
  }

  const Synced synced_;
};

class WatchedFiles : public ::rocksdb::FileSystemWrapper {
 public:
  explicit WatchedFiles(Synced synced)
      : FileSystemWrapper(::rocksdb::FileSystem::Default()), synced_(std::move(synced)) {}
  const char* Name() const override { return "WatchedFiles"; }
  ::rocksdb::IOStatus NewWritableFile(const std::string& path, const ::rocksdb::FileOptions& options,
                                      std::unique_ptr<::rocksdb::FSWritableFile>* file,
                                      ::rocksdb::IODebugContext* context) override {
    ::rocksdb::IOStatus s = FileSystemWrapper::NewWritableFile(path, options, file, context);
    if (s.ok() && path.find("MANIFEST") != std::string::npos) {
      file->reset(new WatchedManifest(std::move(*file), synced_));
    }
    return s;
  }

 private:
  const Synced synced_;
};

inline std::unique_ptr<::rocksdb::Env> WatchingManifests(Synced synced) {
  return ::rocksdb::NewCompositeEnv(std::make_shared<WatchedFiles>(std::move(synced)));
}
