/* What the rules ask for, worked out a second time and plainly: by the text of doc/tuner.md and by
 * the loops of NCCL's enqueue.cc, not by the plugin's code. */
#pragma once

#include <stddef.h>

#include "tests/tuner/tuners.h"

enum { NONE = -1, WAVE = 0 };

typedef struct {
  unsigned collectives; /* bit per collective; 0: all */
  long long min_bytes, max_bytes;
  long long min_nodes, max_nodes, min_ranks, max_ranks;
  int max_ctas; /* NONE, WAVE or a count */
  int algorithm, protocol;
  long long chunk_bytes;
} Rule;

typedef struct {
  const Rule* rules;
  int count;
  long long ranks, nodes;
  int users_algorithm, users_protocol, users_channels; /* set by NCCL's variables */
  int wave;                                            /* what WAVE stands for */
} Setting;

/* `table` is as it was before the question; afterwards as it should be. */
Answer reference_answer(const Setting* setting, int version, const Question* question,
                        Table* table);
size_t reference_chunk(const Setting* setting, int collective, size_t bytes, int algorithm,
                       int protocol, size_t own);

typedef struct {
  long long m, n, tile_m, tile_n;
} Gemm;

/* The largest count up to 64 with which no GEMM needs more waves than with a count of 1. */
int reference_wave(const Gemm* gemms, int count, int sms, int leave, int cluster, int ctas_per_sm);
