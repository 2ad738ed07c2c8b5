#include "tests/tuner/reference.h"

#include <string.h>

static const Rule* matching(const Setting* setting, int collective, size_t bytes, int from) {
  for (int i = from; i < setting->count && collective >= 0 && collective <= 4; ++i) {
    const Rule* rule = &setting->rules[i];
    if (rule->collectives != 0 && !(rule->collectives & 1u << collective)) continue;
    if (bytes < (size_t)rule->min_bytes || bytes > (size_t)rule->max_bytes) continue;
    if (setting->nodes < rule->min_nodes || setting->nodes > rule->max_nodes) continue;
    if (setting->ranks < rule->min_ranks || setting->ranks > rule->max_ranks) continue;
    return rule;
  }
  return NULL;
}

/* The channels that NCCL, had it 64, would take for a ring or a tree, at most: its own loop. */
static int own_channels(int algorithm, int protocol, size_t bytes, long long ranks) {
  static const long long threads[] = {512, 640, 256, 512}, thresholds[] = {8, 8, 64, 8};
  long long step = threads[protocol] * thresholds[protocol];
  if (algorithm == RING && protocol == LL) step *= ranks;
  int channels = 65;
  while (channels >= 2 && bytes < (size_t)(channels * step)) --channels;
  return channels;
}

static int channels_for(const Setting* setting, const Rule* rule, size_t bytes, Answer choice) {
  const int limit = rule->max_ctas == WAVE ? setting->wave : rule->max_ctas;
  if (limit == NONE || limit >= 64 || setting->users_channels) return 0;
  switch (choice.algorithm) {
    case UNSET: /* v2: tree with LL gets channels soonest */
      return own_channels(TREE, LL, bytes, setting->ranks) > limit ? limit : 0;
    case RING:
    case TREE:
      return own_channels(choice.algorithm, choice.protocol, bytes, setting->ranks) > limit ? limit
                                                                                            : 0;
    case COLLNET_DIRECT:
    case COLLNET_CHAIN:
      return 0;
    case NVLS:
      return setting->nodes > 1 ? 0 : limit;
    default:
      return limit;
  }
}

static Answer answer_v2(const Setting* setting, const Rule* rule, const Question* question) {
  Answer answer = {0, UNSET, UNSET};
  const int a = rule->algorithm, p = rule->protocol, what = question->collective;
  const int free = !setting->users_algorithm && !setting->users_protocol;
  const int reduces = what >= 2; /* all-gather, reduce-scatter, all-reduce have NVLS */
  if (free && ((a == RING && (p == LL || p == SIMPLE)) ||
               (a == TREE && (p == LL || p == SIMPLE) && what == 4) ||
               (a == NVLS && p == SIMPLE && question->nvls && setting->nodes == 1 && reduces))) {
    answer.algorithm = a;
    answer.protocol = p;
  }
  if (question->collnet && answer.algorithm == UNSET) return answer;
  answer.channels = channels_for(setting, rule, question->bytes, answer);
  return answer;
}

Answer reference_answer(const Setting* setting, int version, const Question* question,
                        Table* table) {
  const Rule* rule = matching(setting, question->collective, question->bytes, 0);
  if (version == 2) {
    return rule ? answer_v2(setting, rule, question) : (Answer){0, UNSET, UNSET};
  }
  if (rule == NULL) return table_choice(table);
  const int algorithm = setting->users_algorithm ? NONE : rule->algorithm;
  const int protocol = setting->users_protocol ? NONE : rule->protocol;
  if (algorithm != NONE || protocol != NONE) {
    float cells[MOST_ALGORITHMS * MOST_PROTOCOLS];
    Table allowed = *table;
    allowed.cells = cells;
    for (int a = 0; a < table->algorithms; ++a) {
      for (int p = 0; p < table->protocols; ++p) {
        const int wanted =
            (algorithm == NONE || a == algorithm) && (protocol == NONE || p == protocol);
        *table_cell(&allowed, a, p) = wanted ? *table_cell(table, a, p) : -1;
      }
    }
    const Answer best = table_choice(&allowed);
    if (best.algorithm != UNSET) *table_cell(table, best.algorithm, best.protocol) = 0;
  }
  Answer answer = table_choice(table);
  if (answer.algorithm != UNSET) {
    answer.channels = channels_for(setting, rule, question->bytes, answer);
  }
  return answer;
}

size_t reference_chunk(const Setting* setting, int collective, size_t bytes, int algorithm,
                       int protocol, size_t own) {
  for (const Rule* rule = matching(setting, collective, bytes, 0); rule != NULL;
       rule = matching(setting, collective, bytes, (int)(rule - setting->rules) + 1)) {
    if (rule->chunk_bytes == NONE) continue;
    if (rule->algorithm != NONE && rule->algorithm != algorithm) continue;
    if (rule->protocol != NONE && rule->protocol != protocol) continue;
    if (algorithm != TREE && algorithm != RING && algorithm != PAT) return own;
    return rule->chunk_bytes < 1920 ? 1920 : (size_t)rule->chunk_bytes;
  }
  return own;
}

/* Waves counted one by one. */
static long long count_waves(long long clusters, long long places) {
  long long waves = 0;
  for (; clusters > 0; clusters -= places) ++waves;
  return waves;
}

int reference_wave(const Gemm* gemms, int count, int sms, int leave, int cluster, int ctas_per_sm) {
  for (int x = 64; x > 1; --x) {
    int same = 1;
    const long long with = (long long)(sms - leave - x) * ctas_per_sm / cluster;
    const long long with_one = (long long)(sms - leave - 1) * ctas_per_sm / cluster;
    for (int i = 0; i < count && same; ++i) {
      const long long rows = (gemms[i].m + gemms[i].tile_m - 1) / gemms[i].tile_m;
      const long long columns = (gemms[i].n + gemms[i].tile_n - 1) / gemms[i].tile_n;
      const long long clusters = (rows * columns + cluster - 1) / cluster;
      same = sms - leave - x > 0 && with > 0 &&
             count_waves(clusters, with) == count_waves(clusters, with_one);
    }
    if (same) return x;
  }
  return 1;
}
