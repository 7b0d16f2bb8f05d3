/* The C interface of the part in Rust (src/ffi.rs, which says what each function does). Only cpp/ uses it. */
#ifndef BRISTLECONE_PIBENCH_H
#define BRISTLECONE_PIBENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bristlecone_pibench bristlecone_pibench;

typedef struct {
  const uint8_t* data;
  size_t len;
} bristlecone_bytes;

bristlecone_pibench* bristlecone_pibench_open(bristlecone_bytes design, bristlecone_bytes path,
                                              uint64_t pool_bytes, size_t key_bytes, size_t value_bytes,
                                              size_t threads, char* message, size_t len);
void bristlecone_pibench_close(bristlecone_pibench*);
bool bristlecone_pibench_design(size_t i, char* to, size_t len);
bool bristlecone_pibench_load(bristlecone_pibench*, bristlecone_bytes records);
bool bristlecone_pibench_find(const bristlecone_pibench*, bristlecone_bytes key, uint8_t* out);
bool bristlecone_pibench_insert(const bristlecone_pibench*, bristlecone_bytes key, bristlecone_bytes value);
bool bristlecone_pibench_update(const bristlecone_pibench*, bristlecone_bytes key, bristlecone_bytes value);
bool bristlecone_pibench_remove(const bristlecone_pibench*, bristlecone_bytes key);
size_t bristlecone_pibench_scan(const bristlecone_pibench*, bristlecone_bytes key, size_t most, uint8_t* out);

#ifdef __cplusplus
}
#endif

#endif
