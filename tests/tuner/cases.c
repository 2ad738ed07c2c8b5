#define _GNU_SOURCE
#include "tests/tuner/cases.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tuner/allocations.h"
#include "tests/tuner/check.h"
#include "tests/tuner/profiles.h"
#include "tests/tuner/tuners.h"

enum { BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE };
static const size_t KiB = 1 << 10, MiB = 1 << 20, GiB = 1 << 30;

/* One question to a communicator made for it. The table has NCCL's size of today and `cheapest`
 * costs least. */
static Answer ask_once(int version, size_t ranks, size_t nodes, int collective, size_t bytes,
                       int algorithm, int protocol) {
  Table table = table_make(7, 3);
  table_fill(&table);
  *table_cell(&table, algorithm, protocol) = 1;
  Tuner tuner = tuner_init(version, ranks, nodes, log_keep);
  const Question question = {collective, bytes, 0, 0, &table};
  const Answer answer = tuner_ask(&tuner, &question);
  tuner_finalize(&tuner);
  table_free(&table);
  return answer;
}

static void unchanged_over_all_sizes(void) {
  for (int version = OLDEST; version <= NEWEST; ++version) {
    Tuner tuner = tuner_init(version, 16, 2, log_keep);
    Table table = table_make(7, 3);
    float before[21];
    for (int collective = 0; collective < 15; ++collective) {
      for (size_t bytes = KiB; bytes <= GiB; bytes *= 2) {
        table_fill(&table);
        *table_cell(&table, NVLS, LL) = -1;
        memcpy(before, table.cells, sizeof(before));
        const Question question = {collective, bytes, 0, 1, &table};
        const Answer answer = tuner_ask(&tuner, &question);
        EQUAL(0, answer.channels);
        EQUAL(0, memcmp(before, table.cells, sizeof(before)));
        if (version == 2) EQUAL(UNSET, answer.algorithm);
        if (version == 6)
          EQUAL(131072, tuner_chunk(&tuner, collective, bytes, RING, SIMPLE, 131072));
      }
    }
    table_free(&table);
    tuner_finalize(&tuner);
  }
}

void no_rule_touches_nothing(void) {
  profile_forget();
  unchanged_over_all_sizes();
  profile_use("  rules:\n  - min_nodes: 3\n    max_ctas: 1\n    algorithm: tree\n");
  unchanged_over_all_sizes();
}

void rules_are_obeyed(void) {
  profile_use(
      "  rules:\n"
      "  - collectives: [reduce_scatter]\n    min_bytes: 1MiB\n    max_bytes: 64MiB\n"
      "    max_ctas: 4\n"
      "  - collectives: [all_reduce]\n    algorithm: tree\n    protocol: simple\n    max_ctas: "
      "8\n");
  for (int version = OLDEST; version <= NEWEST; ++version) {
    EQUAL(4, ask_once(version, 16, 2, REDUCE_SCATTER, MiB, RING, SIMPLE).channels);
    EQUAL(4, ask_once(version, 16, 2, REDUCE_SCATTER, 64 * MiB, RING, SIMPLE).channels);
    EQUAL(0, ask_once(version, 16, 2, REDUCE_SCATTER, 64 * MiB + 1, RING, SIMPLE).channels);
    EQUAL(0, ask_once(version, 16, 2, REDUCE_SCATTER, MiB - 1, RING, SIMPLE).channels);
    EQUAL(0, ask_once(version, 16, 2, ALL_GATHER, 2 * MiB, RING, SIMPLE).channels);
    const Answer answer = ask_once(version, 16, 2, ALL_REDUCE, 32 * MiB, RING, LL128);
    EQUAL(8, answer.channels);
    EQUAL(TREE, answer.algorithm);
    EQUAL(SIMPLE, answer.protocol);
  }
  /* What is not possible stays so. */
  profile_use("  rules:\n  - algorithm: nvls\n    max_ctas: 4\n");
  Table table = table_make(7, 3);
  for (int version = 3; version <= NEWEST; ++version) {
    table_fill(&table);
    for (int p = LL; p <= SIMPLE; ++p) *table_cell(&table, NVLS, p) = -1;
    Tuner tuner = tuner_init(version, 8, 1, log_keep);
    const Question question = {ALL_REDUCE, 32 * MiB, 0, 0, &table};
    const Answer answer = tuner_ask(&tuner, &question);
    EQUAL(TREE, answer.algorithm); /* the first cell is the cheapest */
    EQUAL(4, answer.channels);
    for (int p = LL; p <= SIMPLE; ++p) EQUAL(1, *table_cell(&table, NVLS, p) == -1);
    /* Nothing possible at all: NCCL says so itself. */
    for (int i = 0; i < 21; ++i) table.cells[i] = -1;
    EQUAL(0, tuner_ask(&tuner, &question).channels);
    for (int i = 0; i < 21; ++i) EQUAL(1, table.cells[i] == -1);
    tuner_finalize(&tuner);
  }
  table_free(&table);
}

static Answer with_variable(int version, const char* name, const char* value) {
  setenv(name, value, 1);
  const Answer answer = ask_once(version, 16, 2, ALL_REDUCE, 64 * MiB, RING, LL);
  unsetenv(name);
  return answer;
}

void users_variables_win(void) {
  profile_use("  rules:\n  - algorithm: tree\n    protocol: simple\n    max_ctas: 4\n");
  static const char* const channels[] = {"NCCL_MAX_CTAS",      "NCCL_MIN_CTAS",
                                         "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS",
                                         "NCCL_MAX_NRINGS",    "NCCL_MIN_NRINGS"};
  for (int version = OLDEST; version <= NEWEST; ++version) {
    for (size_t i = 0; i < sizeof(channels) / sizeof(*channels); ++i) {
      const Answer answer = with_variable(version, channels[i], "16");
      EQUAL(0, answer.channels);
      EQUAL(TREE, answer.algorithm);
      EQUAL(4, with_variable(version, channels[i], "").channels);
    }
    const Answer algorithm = with_variable(version, "NCCL_ALGO", "ring");
    EQUAL(4, algorithm.channels);
    EQUAL(version == 2 ? UNSET : TREE == algorithm.algorithm ? TREE : RING, algorithm.algorithm);
    const Answer protocol = with_variable(version, "NCCL_PROTO", "LL");
    EQUAL(4, protocol.channels);
    EQUAL(version == 2 ? UNSET : TREE, protocol.algorithm);
    EQUAL(version == 2 ? UNSET : LL, protocol.protocol);
  }
}

void small_messages_keep_nccls_count(void) {
  profile_use("  rules:\n  - max_ctas: 4\n");
  for (int version = 3; version <= NEWEST; ++version) {
    /* NCCL adds a channel to a ring for each 16 KiB or more with Simple, 5 KiB with LL128, and
     * 4 KiB a rank with LL: up to four times that it has at most 4 by itself. */
    EQUAL(0, ask_once(version, 16, 2, ALL_GATHER, 80 * KiB - 1, RING, SIMPLE).channels);
    EQUAL(4, ask_once(version, 16, 2, ALL_GATHER, 80 * KiB, RING, SIMPLE).channels);
    EQUAL(0, ask_once(version, 16, 2, ALL_GATHER, 25 * KiB - 1, RING, LL128).channels);
    EQUAL(4, ask_once(version, 16, 2, ALL_GATHER, 25 * KiB, RING, LL128).channels);
    EQUAL(0, ask_once(version, 16, 2, ALL_GATHER, 320 * KiB - 1, RING, LL).channels);
    EQUAL(4, ask_once(version, 16, 2, ALL_GATHER, 320 * KiB, RING, LL).channels);
    EQUAL(0, ask_once(version, 16, 2, ALL_REDUCE, 20 * KiB - 1, TREE, LL).channels);
    EQUAL(4, ask_once(version, 16, 2, ALL_REDUCE, 20 * KiB, TREE, LL).channels);
    /* NVLS and PAT take all whatever the size. */
    EQUAL(4, ask_once(version, 8, 1, ALL_REDUCE, KiB, NVLS, SIMPLE).channels);
    EQUAL(4, ask_once(version, 16, 2, ALL_GATHER, KiB, PAT, SIMPLE).channels);
    setenv("NCCL_NTHREADS", "64", 1);
    EQUAL(4, ask_once(version, 16, 2, ALL_GATHER, KiB, RING, SIMPLE).channels);
    unsetenv("NCCL_NTHREADS");
  }
}

void collnet_keeps_its_count(void) {
  profile_use("  rules:\n  - max_ctas: 4\n");
  for (int version = 3; version <= NEWEST; ++version) {
    EQUAL(0, ask_once(version, 16, 2, ALL_REDUCE, GiB, COLLNET_DIRECT, SIMPLE).channels);
    EQUAL(0, ask_once(version, 16, 2, ALL_REDUCE, GiB, COLLNET_CHAIN, SIMPLE).channels);
    EQUAL(0, ask_once(version, 16, 2, ALL_REDUCE, GiB, NVLS, SIMPLE).channels);
    EQUAL(4, ask_once(version, 16, 2, ALL_REDUCE, GiB, NVLS_TREE, SIMPLE).channels);
  }
  Tuner tuner = tuner_init(2, 16, 2, log_keep);
  const Question with = {ALL_REDUCE, GiB, 1, 0, NULL}, without = {ALL_REDUCE, GiB, 0, 0, NULL};
  EQUAL(0, tuner_ask(&tuner, &with).channels);
  EQUAL(4, tuner_ask(&tuner, &without).channels);
  tuner_finalize(&tuner);
}

void old_tables_are_not_overrun(void) {
  profile_use("  rules:\n  - algorithm: pat\n    protocol: simple\n    max_ctas: 4\n");
  /* 2.22: 6 algorithms, no PAT; 2.23 on: 7; sizes that no release had. */
  static const int sizes[][2] = {{6, 3}, {7, 3}, {8, 4}, {5, 2}, {1, 1}, {12, 4}, {0, 3}, {3, 0}};
  for (int version = 3; version <= NEWEST; ++version) {
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); ++i) {
      Table table = table_make(sizes[i][0], sizes[i][1]);
      table_fill(&table);
      Tuner tuner = tuner_init(version, 16, 2, log_keep);
      const Question question = {ALL_GATHER, GiB, 0, 0, &table};
      const Answer answer = tuner_ask(&tuner, &question);
      const int has_pat = sizes[i][0] > PAT && sizes[i][1] > SIMPLE;
      const int empty = sizes[i][0] * sizes[i][1] == 0;
      EQUAL(has_pat ? PAT : empty ? UNSET : TREE, answer.algorithm);
      EQUAL(empty ? 0 : 4, answer.channels);
      tuner_finalize(&tuner);
      table_free(&table);
    }
  }
}

void chunk_sizes(void) {
  profile_use(
      "  rules:\n"
      "  - max_ctas: 8\n"
      "  - collectives: [all_gather]\n    protocol: simple\n    chunk_bytes: 256KiB\n"
      "  - collectives: [all_gather]\n    min_bytes: 1MiB\n    chunk_bytes: 1KiB\n"
      "  - collectives: [all_reduce]\n    algorithm: ring\n    chunk_bytes: 64MiB\n");
  Tuner tuner = tuner_init(6, 16, 2, log_keep);
  EQUAL(256 * KiB, tuner_chunk(&tuner, ALL_GATHER, KiB, RING, SIMPLE, 4096));
  EQUAL(4096, tuner_chunk(&tuner, ALL_GATHER, KiB, RING, LL, 4096));
  /* Never below NCCL's largest grain: it rounds down, and 0 would hang. */
  EQUAL(1920, tuner_chunk(&tuner, ALL_GATHER, MiB, RING, LL128, 4096));
  EQUAL(64 * MiB, tuner_chunk(&tuner, ALL_REDUCE, KiB, RING, LL, 4096));
  EQUAL(4096, tuner_chunk(&tuner, ALL_REDUCE, KiB, TREE, LL, 4096));
  EQUAL(4096, tuner_chunk(&tuner, ALL_GATHER, MiB, NVLS, SIMPLE, 4096));
  EQUAL(4096, tuner_chunk(&tuner, ALL_GATHER, MiB, COLLNET_DIRECT, SIMPLE, 4096));
  EQUAL(4096, tuner_chunk(&tuner, BROADCAST, MiB, RING, SIMPLE, 4096));
  EQUAL(4096, tuner_chunk(&tuner, 8, MiB, RING, SIMPLE, 4096));
  tuner_finalize(&tuner);
}

void wave_rule(void) {
  /* 2 x 64 tiles of 128 x 128 on 132 multiprocessors: 4 are left. */
  static const char kRule[] = "  rules:\n  - collectives: [reduce_scatter]\n    max_ctas: wave\n";
  char lines[2048];
  snprintf(lines, sizeof(lines),
           "%s  wave:\n    sms: 132\n    gemms:\n    - {name: up, m: 256, n: 8192, k: 8192}\n",
           kRule);
  profile_use(lines);
  log_clear();
  for (int version = OLDEST; version <= NEWEST; ++version)
    EQUAL(4, ask_once(version, 16, 2, REDUCE_SCATTER, 64 * MiB, RING, SIMPLE).channels);
  CONTAINS(log_text(), "wave rule: at most 4 CTAs beside 1 GEMM on 132 multiprocessors");
  CONTAINS(log_text(),
           "reduce_scatter (first of 67108864 bytes; 16 ranks, 2 nodes): at most 4 CTAs");

  /* One that fills the device loses a wave to any CTA: named, and kept from losing another. */
  snprintf(lines, sizeof(lines),
           "%s  wave:\n    sms: 132\n    gemms:\n"
           "    - {name: up, m: 256, n: 8192, k: 8192}\n"
           "    - {name: full, m: 128, n: 16896, k: 8192}\n",
           kRule);
  profile_use(lines);
  log_clear();
  EQUAL(4, ask_once(6, 16, 2, REDUCE_SCATTER, 64 * MiB, RING, SIMPLE).channels);
  CONTAINS(log_text(), "a wave is lost to any CTA by full");

  /* Far from a wave's edge: no limit. */
  snprintf(lines, sizeof(lines),
           "%s  wave:\n    sms: 132\n    gemms:\n    - {name: small, m: 128, n: 1024, k: 512}\n",
           kRule);
  profile_use(lines);
  EQUAL(0, ask_once(6, 16, 2, REDUCE_SCATTER, 64 * MiB, RING, SIMPLE).channels);

  /* Without a device, and without a number in the profile, there is nothing to count. */
  snprintf(lines, sizeof(lines),
           "%s  wave:\n    gemms:\n    - {name: up, m: 256, n: 8192, k: 8192}\n", kRule);
  profile_use(lines);
  EQUAL(0, ask_once(6, 16, 2, REDUCE_SCATTER, 64 * MiB, RING, SIMPLE).channels);
}

void decisions_are_told_once(void) {
  profile_use(
      "  rules:\n  - collectives: [all_gather]\n    max_ctas: 4\n    algorithm: ring\n"
      "  - collectives: [broadcast]\n    max_ctas: 2\n");
  Table table = table_make(7, 3);
  for (int version = 3; version <= NEWEST; ++version) {
    log_clear();
    Tuner tuner = tuner_init(version, 16, 2, log_keep);
    for (size_t bytes = MiB; bytes <= GiB; bytes *= 2) {
      for (int collective = BROADCAST; collective <= ALL_REDUCE; ++collective) {
        table_fill(&table);
        const Question question = {collective, bytes, 0, 0, &table};
        tuner_ask(&tuner, &question);
      }
    }
    EQUAL(1, log_count("all_gather (first of 1048576 bytes"));
    EQUAL(1, log_count("broadcast (first of 1048576 bytes"));
    EQUAL(3, log_count("TUNER/Tide")); /* with the one of init */
    EQUAL(2, log_count("3 40 "));      /* INFO, NCCL_TUNING alone: not at SUBSYS=INIT */
    CONTAINS(log_text(), "2 of 2 rules are for 16 ranks on 2 nodes");
    CONTAINS(log_text(), "at most 4 CTAs, ring, ll, by the rule of line 4");
    tuner_finalize(&tuner);
    /* NCCL has a logger, others may not. */
    Tuner silent = tuner_init(version, 16, 2, NULL);
    const Question question = {ALL_GATHER, GiB, 0, 0, &table};
    EQUAL(4, tuner_ask(&silent, &question).channels);
    tuner_finalize(&silent);
  }
  table_free(&table);
}

void bad_profiles_are_told_once(void) {
  log_clear();
  profile_use("  rules:\n  - max_ctas: 400\n");
  for (int version = OLDEST; version <= NEWEST; ++version)
    EQUAL(0, ask_once(version, 16, 2, ALL_GATHER, GiB, RING, SIMPLE).channels);
  EQUAL(1, log_count("every choice is NCCL's"));
  EQUAL(1, log_count("TUNER/Tide"));
  CONTAINS(log_text(), "2 41 TUNER/Tide: every choice is NCCL's: ");
  CONTAINS(log_text(), "max_ctas");
}

void switched_off(void) {
  profile_use("  rules:\n  - max_ctas: 4\n");
  setenv("TIDE_TUNER", "off", 1);
  log_clear();
  unchanged_over_all_sizes();
  CONTAINS(log_text(), "off, by TIDE_TUNER");
  unsetenv("TIDE_TUNER");
  profile_use("  enabled: false\n  rules:\n  - max_ctas: 4\n");
  unchanged_over_all_sizes();
}

void asking_does_not_allocate(void) {
  profile_use("  rules:\n  - max_ctas: 4\n    algorithm: ring\n    chunk_bytes: 64KiB\n");
  Table table = table_make(7, 3);
  for (int version = OLDEST; version <= NEWEST; ++version) {
    Tuner tuner = tuner_init(version, 16, 2, NULL);
    const long before = allocations_made();
    for (size_t bytes = KiB; bytes <= GiB; bytes *= 2) {
      table_fill(&table);
      const Question question = {ALL_REDUCE, bytes, 0, 0, &table};
      tuner_ask(&tuner, &question);
      if (version == 6) tuner_chunk(&tuner, ALL_REDUCE, bytes, RING, SIMPLE, 4096);
    }
    EQUAL(0, allocations_made() - before);
    tuner_finalize(&tuner);
  }
  table_free(&table);
}

void many_communicators(void) {
  profile_use("  rules:\n  - max_ctas: 4\n  - algorithm: ring\n");
  Tuner live[64];
  long start = 0;
  for (int round = 0; round < 12; ++round) {
    for (int i = 0; i < 64; ++i) {
      live[i] = tuner_init(OLDEST + i % 5, 2 + (size_t)i, 1 + (size_t)i / 8, NULL);
    }
    for (int i = 63; i >= 0; --i) tuner_finalize(&live[i]);
    if (round == 1) start = allocations_live(); /* what is kept for the process is there by now */
  }
  EQUAL(0, allocations_live() - start);
}

typedef struct {
  int version, limit;
  size_t ranks;
  int wrong;
} Asker;

static void* ask_on_thread(void* argument) {
  Asker* asker = argument;
  Table table = table_make(7, 3);
  for (int round = 0; round < 40; ++round) {
    Tuner tuner = tuner_init(asker->version, asker->ranks, 2, log_keep);
    for (int i = 0; i < 500; ++i) {
      table_fill(&table);
      const Question question = {ALL_GATHER, GiB, 0, 0, &table};
      asker->wrong += tuner_ask(&tuner, &question).channels != asker->limit;
    }
    tuner_finalize(&tuner);
  }
  table_free(&table);
  return NULL;
}

static void* ask_shared(void* argument) {
  Table table = table_make(7, 3);
  size_t wrong = 0;
  for (int i = 0; i < 20000; ++i) {
    table_fill(&table);
    const Question question = {ALL_GATHER, GiB, 0, 0, &table};
    wrong += tuner_ask(argument, &question).channels != 4;
  }
  table_free(&table);
  return (void*)wrong;
}

void threads_ask_at_once(void) {
  profile_use("  rules:\n  - max_ranks: 16\n    max_ctas: 4\n  - max_ctas: 8\n");
  log_clear();
  Asker askers[] = {{6, 4, 16, 0}, {6, 8, 17, 0}, {3, 8, 64, 0}};
  pthread_t threads[3];
  for (int i = 0; i < 3; ++i) pthread_create(&threads[i], NULL, ask_on_thread, &askers[i]);
  for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
  for (int i = 0; i < 3; ++i) EQUAL(0, askers[i].wrong);
  EQUAL(3 * 40, log_count("all_gather (first of")); /* once per communicator */

  /* NCCL asks for a communicator from one thread at a time; two do no harm. */
  log_clear();
  Tuner shared = tuner_init(6, 16, 2, log_keep);
  for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, ask_shared, &shared);
  for (int i = 0; i < 2; ++i) {
    void* wrong;
    pthread_join(threads[i], &wrong);
    EQUAL(0, (size_t)wrong);
  }
  tuner_finalize(&shared);
  EQUAL(1, log_count("all_gather (first of"));
}
