// What the tests share.

#pragma once

#include <rocksdb/db.h>
#include <rocksdb/merge_operator.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                           \
    }                                                                         \
  } while (false)

#define CHECK_OK(expression)                                                                         \
  do {                                                                                               \
    ::rocksdb::Status check_status = (expression);                                                   \
    if (!check_status.ok()) {                                                                        \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #expression,                       \
                   check_status.ToString().c_str());                                                 \
      std::exit(1);                                                                                  \
    }                                                                                                \
  } while (false)

// Appends operands, so that one that is applied twice, or not at all, shows.
class Append : public ::rocksdb::AssociativeMergeOperator {
 public:
  const char* Name() const override { return "append"; }
  bool Merge(const ::rocksdb::Slice&, const ::rocksdb::Slice* existing, const ::rocksdb::Slice& value,
             std::string* merged, ::rocksdb::Logger*) const override {
    *merged = existing != nullptr ? existing->ToString() + "," + value.ToString() : value.ToString();
    return true;
  }
};

// A database with its column families.
struct Store {
  ::rocksdb::DB* db = nullptr;
  std::vector<::rocksdb::ColumnFamilyHandle*> families;
};

inline void Close(const Store& store) {
  for (::rocksdb::ColumnFamilyHandle* family : store.families) {
    CHECK_OK(store.db->DestroyColumnFamilyHandle(family));
  }
  delete store.db;
}

// Returns the word after `name` among the arguments, or `otherwise`.
inline std::string Argument(int argc, char** argv, const std::string& name, const std::string& otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (name == argv[i]) {
      return argv[i + 1];
    }
  }
  return otherwise;
}

// An empty folder of the test's own, below `folder`.
inline std::string Fresh(const std::string& folder, const std::string& name) {
  std::string path = folder + "/" + name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

// Does `work` in a process of its own, which must end well. A process that has opened a database has
// threads, which one that it forks would lack: so tests that fork open databases in such processes only.
template <typename Work>
void Apart(const Work& work) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    work();
    std::fflush(nullptr);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Does `work` in a process of its own, which is killed when that is done.
template <typename Work>
void Killed(const Work& work) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    work();
    std::fflush(nullptr);
    raise(SIGKILL);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

// Tests by their names, each with an empty folder of its own.
using Tests = std::vector<std::pair<std::string, void (*)(const std::string&)>>;

// Runs those of them that --only names, or all, below --folder. `found` is said of each that passes.
inline int RunTests(int argc, char** argv, const std::string& program, const std::string& found, const Tests& tests) {
  const std::string folder =
      Fresh(Argument(argc, argv, "--folder", "/dev/shm"), "bristlecone-rocksdb-" + program);
  const std::string only = Argument(argc, argv, "--only", "");
  for (const auto& [name, test] : tests) {
    if (only.empty() || only == name) {
      test(Fresh(folder, name));
      std::printf("%s: %s\n", name.c_str(), found.c_str());
      std::fflush(stdout);  // A process that is forked would tell it again.
    }
  }
  std::filesystem::remove_all(folder);
  return 0;
}
