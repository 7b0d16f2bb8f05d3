// What goes wrong is told, and nothing ends the process: full, damaged, foreign and locked pools.
//
//   faults [--folder DIR]

#include <rocksdb/write_batch.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "bristlecone/rocksdb.h"
#include "support.h"

using namespace ::rocksdb;
using bristlecone::rocksdb::Open;

namespace {

Options Base() {
  Options options;
  options.create_if_missing = true;
  options.write_buffer_size = 64 << 20;
  options.avoid_flush_during_shutdown = true;
  return options;
}

std::string Key(int i) {
  char key[16];
  std::snprintf(key, sizeof(key), "key%08d", i);
  return key;
}

// A pool of 16 MB is filled: a write fails, changes nothing, and a flush makes room.
void Full(const std::string& folder) {
  const std::string at = Fresh(folder, "full");
  const std::string pool = at + "/pool";
  DB* db;
  CHECK_OK(Open(Base(), at + "/db", {pool, 16 << 20}, &db));
  const std::string value(1000, 'v');
  int written = 0;
  Status s;
  while ((s = db->Put(WriteOptions(), Key(written), value)).ok()) {
    CHECK(++written < 16000);
  }
  CHECK(s.IsIOError());
  CHECK(std::strstr(s.ToString().c_str(), "full") != nullptr);
  CHECK(written > 5000);
  std::string found;
  CHECK(db->Get(ReadOptions(), Key(written), &found).IsNotFound());
  CHECK_OK(db->Get(ReadOptions(), Key(written - 1), &found));
  WriteBatch large;
  for (int i = 0; i < 100; ++i) {
    CHECK_OK(large.Put(Key(i), value));
  }
  CHECK(db->Write(WriteOptions(), &large).IsIOError());
  CHECK_OK(db->Flush(FlushOptions()));
  CHECK_OK(db->Put(WriteOptions(), Key(written), value));
  CHECK_OK(db->Write(WriteOptions(), &large));
  // What is larger than the whole pool is refused before it begins.
  WriteBatch huge;
  CHECK_OK(huge.Put("huge", std::string(20 << 20, 'h')));
  CHECK(db->Write(WriteOptions(), &huge).IsIOError());
  CHECK(db->Get(ReadOptions(), "huge", &found).IsNotFound());
  delete db;
  CHECK_OK(Open(Base(), at + "/db", {pool, 16 << 20}, &db));
  for (int i = 0; i <= written; ++i) {
    CHECK_OK(db->Get(ReadOptions(), Key(i), &found));
    CHECK(found == value);
  }
  delete db;
}

// A scratch pool that is full: what it has no room for is in DRAM, and every answer stays right.
void Spilled(const std::string& folder) {
  const std::string at = Fresh(folder, "spilled");
  Options options = Base();
  bristlecone::rocksdb::ScratchOptions scratch;
  scratch.path = at + "/pool";
  scratch.max_bytes = 8 << 20;
  CHECK_OK(NewScratchFactory(scratch, &options.memtable_factory));
  DB* db;
  CHECK_OK(DB::Open(options, at + "/db", &db));
  constexpr int kKeys = 20000;
  for (int i = 0; i < kKeys; ++i) {
    // Every other one first, so that those in DRAM lie between.
    const int key = i < kKeys / 2 ? 2 * i : 2 * (i - kKeys / 2) + 1;
    CHECK_OK(db->Put(WriteOptions(), Key(key), std::string(900, static_cast<char>('a' + key % 26))));
  }
  std::string found;
  for (int i = 0; i < kKeys; ++i) {
    CHECK_OK(db->Get(ReadOptions(), Key(i), &found));
    CHECK(found[0] == 'a' + i % 26);
  }
  std::unique_ptr<Iterator> it(db->NewIterator(ReadOptions()));
  int seen = 0;
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    CHECK(it->key() == Key(seen++));
  }
  CHECK(seen == kKeys);
  for (it->SeekToLast(); it->Valid(); it->Prev()) {
    CHECK(it->key() == Key(--seen));
  }
  CHECK(seen == 0);
  it->Seek(Key(777));
  CHECK(it->key() == Key(777));
  it->Prev();
  CHECK(it->key() == Key(776));
  it->Next();
  it->Next();
  CHECK(it->key() == Key(778));
  it.reset();
  CHECK_OK(db->Flush(FlushOptions()));
  CHECK_OK(db->Get(ReadOptions(), Key(kKeys - 1), &found));
  delete db;
}

// Bytes of records and of leaves are changed: the next opening says so.
void Damaged(const std::string& folder) {
  const std::string at = Fresh(folder, "damaged");
  const std::string pool = at + "/pool";
  DB* db;
  CHECK_OK(Open(Base(), at + "/db", {pool}, &db));
  const std::string value = "a value that is easy to find";
  for (int i = 0; i < 1000; ++i) {
    CHECK_OK(db->Put(WriteOptions(), Key(i), value));
  }
  delete db;
  std::string bytes;
  {
    std::ifstream file(pool, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  auto with = [&](const std::string& changed) {
    std::ofstream(pool, std::ios::binary | std::ios::trunc) << changed;
    Status s = Open(Base(), at + "/db", {pool}, &db);
    if (s.ok()) {
      delete db;
    }
    return s;
  };
  const size_t place = bytes.find(value);
  CHECK(place != std::string::npos);
  std::string changed = bytes;
  changed[place] ^= 1;
  CHECK(with(changed).IsCorruption());
  std::string short_one = bytes.substr(0, bytes.size() / 2);
  CHECK(with(short_one).IsCorruption());
  CHECK(with("this is no pool at all").IsCorruption());
  // One byte in many places that are in use: an answer, whatever it is.
  std::vector<size_t> used;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != 0) {
      used.push_back(i);
    }
  }
  std::mt19937_64 random(7);
  int refused = 0, silent = 0;
  for (int i = 0; i < 300; ++i) {
    changed = bytes;
    changed[used[random() % used.size()]] ^= static_cast<char>(1 + random() % 255);
    std::filesystem::remove_all(at + "/copy");
    // (IDENTITY with it, so that the pool is its own.)
    std::filesystem::copy(at + "/db", at + "/copy", std::filesystem::copy_options::recursive);
    std::ofstream(pool, std::ios::binary | std::ios::trunc) << changed;
    Status s = Open(Base(), at + "/copy", {pool}, &db);
    if (s.ok()) {
      bool whole = true;
      std::string found;
      for (int key = 0; key < 1000 && whole; ++key) {
        whole = db->Get(ReadOptions(), Key(key), &found).ok() && found == value;
      }
      silent += whole ? 0 : 1;
      delete db;
    } else {
      CHECK(s.IsCorruption() || s.IsIOError());
      ++refused;
    }
  }
  std::printf("300 pools with a changed byte: %d refused, %d lack something\n", refused, silent);
  CHECK(refused > 100);
  CHECK(silent == 0);
  std::ofstream(pool, std::ios::binary | std::ios::trunc) << bytes;
  CHECK_OK(Open(Base(), at + "/db", {pool}, &db));
  std::string found;
  CHECK_OK(db->Get(ReadOptions(), Key(999), &found));
  delete db;
}

// What is not taken says why.
void Refused(const std::string& folder) {
  const std::string at = Fresh(folder, "refused");
  DB* db;
  CHECK_OK(Open(Base(), at + "/db", {at + "/pool"}, &db));
  DB* other;
  CHECK(Open(Base(), at + "/other", {at + "/pool"}, &other).IsIOError());
  CHECK(Open(Base(), at + "/other", {at + "/no/folder"}, &other).IsIOError());
  CHECK_OK(db->Put(WriteOptions(), "k", "v"));
  delete db;
  CHECK(Open(Base(), at + "/other", {at + "/pool"}, &other).IsInvalidArgument());
  CHECK_OK(Open(Base(), at + "/db", {at + "/pool"}, &db));
  Options options = Base();
  options.inplace_update_support = true;
  CHECK(Open(options, at + "/other", {at + "/pool2"}, &other).IsInvalidArgument());
  options = Base();
  options.unordered_write = true;
  CHECK(Open(options, at + "/other", {at + "/pool3"}, &other).IsInvalidArgument());
  options = Base();
  options.enable_pipelined_write = true;
  CHECK(Open(options, at + "/other", {at + "/pool4"}, &other).IsInvalidArgument());
  CHECK(db->DeleteRange(WriteOptions(), db->DefaultColumnFamily(), "a", "b").IsNotSupported());
  WriteBatch batch;
  CHECK_OK(batch.DeleteRange("a", "b"));
  CHECK(db->Write(WriteOptions(), &batch).IsNotSupported());
  CHECK(db->Write(WriteOptions(), nullptr).IsInvalidArgument());
  CHECK(db->NewDefaultReplayer({}, nullptr, nullptr).IsNotSupported());
  // What is about RocksDB's log alone is ignored.
  WriteOptions logging;
  logging.sync = true;
  logging.rate_limiter_priority = Env::IO_USER;
  CHECK_OK(db->Put(logging, "logging", "v"));
  // Families come and go.
  ColumnFamilyHandle* family;
  CHECK_OK(db->CreateColumnFamily(ColumnFamilyOptions(), "new", &family));
  CHECK_OK(db->Put(WriteOptions(), family, "k", "v"));
  CHECK_OK(db->DropColumnFamily(family));
  CHECK_OK(db->DestroyColumnFamilyHandle(family));
  CHECK_OK(db->Put(WriteOptions(), "k", "v"));
  delete db;
  CHECK_OK(Open(Base(), at + "/db", {at + "/pool"}, &db));
  std::string found;
  CHECK_OK(db->Get(ReadOptions(), "k", &found));
  delete db;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = Fresh(Argument(argc, argv, "--folder", "/dev/shm"), "bristlecone-rocksdb-faults");
  Full(folder);
  Spilled(folder);
  Damaged(folder);
  Refused(folder);
  std::filesystem::remove_all(folder);
  std::printf("faults are told\n");
  return 0;
}
