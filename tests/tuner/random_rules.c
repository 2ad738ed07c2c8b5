/* Random profiles, random questions, and the reference beside every answer. */
#define _GNU_SOURCE
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tuner/cases.h"
#include "tests/tuner/check.h"
#include "tests/tuner/profiles.h"
#include "tests/tuner/reference.h"
#include "tests/tuner/tuners.h"

static const char* const kCollectives[] = {"broadcast", "reduce", "all_gather", "reduce_scatter",
                                           "all_reduce"};
static const char* const kAlgorithms[] = {
    "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};
static const char* const kProtocols[] = {"ll", "ll128", "simple"};

/* The same on every machine: xorshift64* (Vigna, 2014). */
static unsigned long long state = 88172645463325252ull;
static unsigned long long next(void) {
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 2685821657736338717ull;
}
static int below(int end) { return (int)(next() >> 33) % end; }
static int chance(int percent) { return below(100) < percent; }
/* Sizes of all magnitudes up to 2^most. */
static long long magnitude(int most) { return (long long)(next() >> (64 - 1 - below(most))); }

static char text[1 << 16];
static size_t used;

static void write_text(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  used += (size_t)vsnprintf(text + used, sizeof(text) - used, format, arguments);
  va_end(arguments);
  if (used >= sizeof(text)) abort();
}

static void random_range(const char* what, int most, long long* low, long long* high) {
  *low = what[0] == 'b' ? 0 : 1;
  *high = what[0] == 'b' ? INT64_MAX : INT32_MAX;
  if (chance(40)) write_text("    min_%s: %lld\n", what, *low = magnitude(most) + *low);
  if (chance(40)) {
    *high = *low + magnitude(most);
    if (*high > 1ll << 40) *high = 1ll << 40;
    if (*high < *low) *high = *low;
    write_text("    max_%s: %lld\n", what, *high);
  }
}

static Rule random_rule(int has_wave) {
  Rule rule = {.max_ctas = NONE, .algorithm = NONE, .protocol = NONE, .chunk_bytes = NONE};
  write_text("  -\n");
  if (chance(60)) {
    const char* mark = "[";
    write_text("    collectives: ");
    rule.collectives = 1 + (unsigned)below(31);
    for (int i = 0; i < 5; ++i) {
      if (!(rule.collectives & 1u << i)) continue;
      write_text("%s%s", mark, kCollectives[i]);
      mark = ", ";
    }
    write_text("]\n");
  }
  random_range("bytes", 39, &rule.min_bytes, &rule.max_bytes);
  random_range("nodes", 6, &rule.min_nodes, &rule.max_nodes);
  random_range("ranks", 9, &rule.min_ranks, &rule.max_ranks);
  if (has_wave && chance(30)) {
    rule.max_ctas = WAVE;
    write_text("    max_ctas: wave\n");
  } else if (chance(60)) {
    write_text("    max_ctas: %d\n", rule.max_ctas = 1 + below(64));
  }
  if (chance(50)) write_text("    algorithm: %s\n", kAlgorithms[rule.algorithm = below(7)]);
  if (chance(50)) write_text("    protocol: %s\n", kProtocols[rule.protocol = below(3)]);
  const int effects = rule.max_ctas != NONE || rule.algorithm != NONE || rule.protocol != NONE;
  if (chance(40) || !effects) {
    write_text("    chunk_bytes: %lld\n", rule.chunk_bytes = 1024 + magnitude(25));
  }
  return rule;
}

/* Of devices that exist or might; what stands in the profile is what the reference counts with. */
static int random_wave(void) {
  Gemm gemms[4];
  const int count = 1 + below(4), sms = 80 + below(120), leave = chance(30) ? below(9) : 0;
  const int cluster = 1 << below(4), ctas_per_sm = 1 + below(3);
  write_text("  wave:\n    sms: %d\n    leave: %d\n    cluster: %d\n    ctas_per_sm: %d\n", sms,
             leave, cluster, ctas_per_sm);
  write_text("    gemms:\n");
  for (int i = 0; i < count; ++i) {
    gemms[i] = (Gemm){1 + magnitude(13), 1 + magnitude(15), 64 << below(3), 64 << below(3)};
    write_text("    - {name: gemm%d, m: %lld, n: %lld, k: 4096, tile_m: %lld, tile_n: %lld}\n", i,
               gemms[i].m, gemms[i].n, gemms[i].tile_m, gemms[i].tile_n);
  }
  return reference_wave(gemms, count, sms, leave, cluster, ctas_per_sm);
}

static int users_choice(const char* variable) {
  if (!chance(15)) {
    unsetenv(variable);
    return 0;
  }
  setenv(variable, "3", 1);
  return 1;
}

static void random_table(Table* table) {
  for (int i = 0; i < table->algorithms * table->protocols; ++i) {
    const int kind = below(20);
    table->cells[i] = kind < 6    ? -1.0f
                      : kind == 6 ? INFINITY
                      : kind == 7 ? NAN
                                  : 0.5f + (float)below(1000);
  }
}

static void ask(const Setting* setting, const Tuner* tuners) {
  static const int sizes[][2] = {{7, 3}, {7, 3}, {6, 3}, {5, 3}, {8, 4}, {1, 1}, {7, 2}, {0, 3}};
  const int* size = sizes[below(8)];
  Table table = table_make(size[0], size[1]), expected = table_make(size[0], size[1]);
  const size_t bytes = table.algorithms * table.protocols * sizeof(float);
  Question question = {below(6), (size_t)magnitude(38), chance(30), chance(50), &table};
  random_table(&table);
  float original[MOST_ALGORITHMS * MOST_PROTOCOLS];
  memcpy(original, table.cells, bytes);
  for (int version = OLDEST; version <= NEWEST; ++version) {
    memcpy(table.cells, original, bytes);
    memcpy(expected.cells, original, bytes);
    const Answer wanted = reference_answer(setting, version, &question, &expected);
    /* Two ranks with the same question: the second answer is the first one. */
    for (int rank = 0; rank < 2; ++rank) {
      memcpy(table.cells, original, bytes);
      const Answer got = tuner_ask(&tuners[2 * version + rank], &question);
      EQUAL(wanted.channels, got.channels);
      EQUAL(wanted.algorithm, got.algorithm);
      EQUAL(wanted.protocol, got.protocol);
      EQUAL(0, memcmp(expected.cells, table.cells, bytes));
    }
  }
  const int algorithm = below(7), protocol = below(3);
  const size_t own = 512 + (size_t)magnitude(20);
  EQUAL(reference_chunk(setting, question.collective, question.bytes, algorithm, protocol, own),
        tuner_chunk(&tuners[2 * 6], question.collective, question.bytes, algorithm, protocol, own));
  table_free(&table);
  table_free(&expected);
}

void random_rules(int profiles, int rules, int questions) {
  Rule list[64];
  if (rules > 64) abort();
  for (int profile = 0; profile < profiles; ++profile) {
    Setting setting = {.rules = list, .count = rules, .wave = NONE};
    used = 0;
    const int has_wave = chance(50);
    if (has_wave) setting.wave = random_wave();
    write_text("  rules:\n");
    for (int i = 0; i < rules; ++i) list[i] = random_rule(has_wave);
    profile_use(text);
    setting.users_algorithm = users_choice("NCCL_ALGO");
    setting.users_protocol = users_choice("NCCL_PROTO");
    setting.users_channels = users_choice("NCCL_MAX_CTAS");
    setting.ranks = 1 + magnitude(9);
    setting.nodes = 1 + magnitude(6);
    if (setting.nodes > setting.ranks) setting.nodes = setting.ranks;
    Tuner tuners[2 * NEWEST + 2];
    log_clear();
    for (int i = 2 * OLDEST; i < 2 * NEWEST + 2; ++i) {
      tuners[i] = tuner_init(i / 2, (size_t)setting.ranks, (size_t)setting.nodes, log_keep);
    }
    if (log_count("rules are for") != 2 * (NEWEST - OLDEST + 1)) {
      EQUAL(2 * (NEWEST - OLDEST + 1), log_count("rules are for"));
      printf("the profile was not taken:\n%s%s", text, log_text());
      return;
    }
    for (int i = 0; i < questions; ++i) ask(&setting, tuners);
    for (int i = 2 * OLDEST; i < 2 * NEWEST + 2; ++i) tuner_finalize(&tuners[i]);
  }
  unsetenv("NCCL_ALGO");
  unsetenv("NCCL_PROTO");
  unsetenv("NCCL_MAX_CTAS");
}
