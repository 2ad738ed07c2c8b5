/* The five versions of NCCL's tuner ABI behind one face, driven as NCCL drives them: from C, by
 * dlopen, with a flat cost table behind a float**. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "plugin/nccl/types.h"

enum { OLDEST = 2, NEWEST = 6, MOST_ALGORITHMS = 12, MOST_PROTOCOLS = 4 };
enum { TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT };
enum { LL, LL128, SIMPLE };
enum { UNSET = -1 };

/* A cost table between two pages that may not be touched. */
typedef struct {
  int algorithms, protocols;
  float* cells; /* [algorithms][protocols]; ends where the second page begins */
  char* pages;
} Table;

Table table_make(int algorithms, int protocols);
void table_free(Table* table);
static inline float* table_cell(Table* table, int algorithm, int protocol) {
  return &table->cells[algorithm * table->protocols + protocol];
}
/* All 10 us and more, dearer towards the end. */
void table_fill(Table* table);

typedef struct {
  int version;
  void* context;
} Tuner;

/* The library that the tuners are taken from. */
void library_open(const char* path);
void library_close(void);

/* Results that are not ncclSuccess end the program: NCCL would end the job. */
Tuner tuner_init(int version, size_t ranks, size_t nodes, ncclDebugLogger_t log);
void tuner_finalize(Tuner* tuner);

typedef struct {
  int channels;            /* 0: no opinion */
  int algorithm, protocol; /* v2: as returned; newer: what NCCL takes from the table */
} Answer;

typedef struct {
  int collective;
  size_t bytes;
  int collnet, nvls; /* v2 only */
  Table* table;      /* v3 and newer: edited */
} Question;

Answer tuner_ask(const Tuner* tuner, const Question* question);
/* v6 */
size_t tuner_chunk(const Tuner* tuner, int collective, size_t bytes, int algorithm, int protocol,
                   size_t own);

/* What NCCL would take from a table: the first of the least costs that are not negative. */
Answer table_choice(const Table* table);
