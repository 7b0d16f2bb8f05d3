/* The C interface of the part in Rust (src/ffi.rs, which says what each function does). Only cpp/ uses it;
 * programs include bristlecone/rocksdb.h. */
#ifndef BRISTLECONE_ROCKSDB_C_H
#define BRISTLECONE_ROCKSDB_C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bristlecone_session bristlecone_session;
typedef struct bristlecone_memtable bristlecone_memtable;
typedef struct bristlecone_replay bristlecone_replay;

enum { BRISTLECONE_IO = 1, BRISTLECONE_CORRUPTION = 2, BRISTLECONE_INVALID = 3, BRISTLECONE_NO_SPACE = 4 };

typedef struct {
  int32_t kind;
  char message[512];
} bristlecone_fault;

typedef struct {
  const uint8_t* data;
  size_t len;
} bristlecone_bytes;

typedef struct {
  uint32_t family;
  uint32_t kind;
  bristlecone_bytes key;
  bristlecone_bytes value;
} bristlecone_entry;

typedef struct {
  uint32_t family;
  uint64_t file;
  uint64_t entries;
  uint64_t first;
  uint64_t last;
} bristlecone_old;

/* Compares two keys, each with its length in front. */
typedef int32_t (*bristlecone_compare)(const void* context, const uint8_t* a, const uint8_t* b);

bristlecone_session* bristlecone_session_open(bristlecone_bytes path, uint64_t max_bytes, bool scratch,
                                              bool must_exist, bristlecone_fault*);
void bristlecone_session_close(bristlecone_session*);
bool bristlecone_session_commit(const bristlecone_session*, bristlecone_fault*);
bool bristlecone_session_make_room(const bristlecone_session*, uint64_t bytes, const uint32_t* families,
                                   size_t count, bristlecone_fault*);
bool bristlecone_session_check_owner(const bristlecone_session*, uint64_t owner, bristlecone_fault*);
bool bristlecone_session_publish(const bristlecone_session*, uint64_t owner, bristlecone_fault*);
bool bristlecone_session_drop_family(const bristlecone_session*, uint32_t family, bristlecone_fault*);
bool bristlecone_session_begin_batch(const bristlecone_session*, uint64_t base, uint64_t last,
                                     bristlecone_fault*);
bool bristlecone_session_end_batch(const bristlecone_session*, bool failed);
bool bristlecone_session_spilled(const bristlecone_session*);
void bristlecone_session_uuid(const bristlecone_session*, uint8_t* out);
bool bristlecone_session_holds(const bristlecone_session*, const uint8_t* at);

bristlecone_memtable* bristlecone_memtable_new(const bristlecone_session*, uint32_t family, bool skip_list,
                                               bristlecone_compare, const void* context);
void bristlecone_memtable_close(bristlecone_memtable*);
uint8_t* bristlecone_memtable_allocate(const bristlecone_memtable*, size_t len, bristlecone_fault*);
int32_t bristlecone_memtable_insert(const bristlecone_memtable*, const uint8_t* at, bristlecone_fault*);
const uint8_t* bristlecone_memtable_get(const bristlecone_memtable*, bristlecone_bytes key);
size_t bristlecone_memtable_scan(const bristlecone_memtable*, bristlecone_bytes key, bool after, bool up,
                                 const uint8_t** out, size_t most);
uint64_t bristlecone_memtable_bytes(const bristlecone_memtable*);
bool bristlecone_memtable_read_only(const bristlecone_memtable*);
bool bristlecone_memtable_flushing(const bristlecone_memtable*, uint64_t file, bristlecone_fault*);
bool bristlecone_memtable_flushed(const bristlecone_memtable*, bristlecone_fault*);
int64_t bristlecone_memtable_verify(const bristlecone_memtable*, bristlecone_fault*);

bristlecone_replay* bristlecone_replay_new(const bristlecone_session*);
void bristlecone_replay_close(bristlecone_replay*);
bool bristlecone_replay_old(const bristlecone_replay*, size_t i, bristlecone_old*);
bool bristlecone_replay_read(bristlecone_replay*, size_t i, bristlecone_compare, const void* context,
                             bristlecone_old*, bristlecone_fault*);
void bristlecone_replay_leave_out(bristlecone_replay*, const bristlecone_old*);
uint64_t bristlecone_replay_sort(bristlecone_replay*);
bool bristlecone_replay_next(bristlecone_replay*, bristlecone_entry*);

#ifdef __cplusplus
}
#endif

#endif
