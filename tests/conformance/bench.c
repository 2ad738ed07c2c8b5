/* Bandwidth and latency of a plugin, as JSON lines on stdout. Receives are posted ahead, as NCCL
 * does. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/cases.h"
#include "tests/conformance/link.h"

enum { kDepth = 8 };

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return x < y ? -1 : x > y;
}

static void bandwidth(size_t size, double seconds) {
  struct channel channel = open_channel(0, world.device);
  struct buffer buffer = make_buffer(&channel, kDepth * (size + 1));
  void* requests[kDepth];
  int count = 2 * kDepth;
  int tag = 0;
  /* Ever longer runs warm up, until one is long enough to tell how many messages fill `seconds`. */
  for (int last = 0, over = 0; !over;) {
    barrier();
    const double begin = now_seconds();
    for (int i = 0; i < count + kDepth; ++i) {
      void* place = buffer.data + (size_t)(i % kDepth) * size;
      if (i >= kDepth) finish(requests[i % kDepth], NULL);
      if (i >= count) continue;
      requests[i % kDepth] = channel.receive != NULL
                                 ? start_receive(&channel, 1, &place, &size, &tag, &buffer.memory)
                                 : start_send(&channel, place, size, tag, buffer.memory);
    }
    double took = now_seconds() - begin;
    if (last && world.rank == 0) {
      printf(
          "{\"what\": \"bandwidth\", \"bytes\": %zu, \"messages\": %d, \"MB/s\": %.1f, "
          "\"us_per_message\": %.3f}\n",
          size, count, (double)size * count / took / 1e6, took / count * 1e6);
      fflush(stdout);
    }
    if (world.rank == 0)
      send_bytes(&took, sizeof(took));
    else
      receive_bytes(&took, sizeof(took));
    over = last;
    last = took > seconds / 4;
    const double growth = seconds / took < 8 ? seconds / took : 8;
    const double wanted = count * growth;
    count = wanted < kDepth ? kDepth : wanted > 1e6 ? 1000000 : (int)wanted;
  }
  free_buffer(&channel, &buffer);
  close_channel(&channel);
}

/* Ping-pong, twice halved: from one send to the next, with all that is done in between (what
 * perftest calls latency), and from a send to its answer. */
static void latency(size_t size, int rounds) {
  struct channel ways[2] = {open_channel(0, world.device), open_channel(1, world.device)};
  struct channel* in = world.rank == 0 ? &ways[0] : &ways[1];
  struct channel* out = world.rank == 0 ? &ways[1] : &ways[0];
  struct buffer sent = make_buffer(out, size + 1);
  struct buffer got = make_buffer(in, kDepth * (size + 1));
  double* period = malloc(sizeof(double) * (size_t)rounds);
  double* answer = malloc(sizeof(double) * (size_t)rounds);
  void* receives[kDepth];
  void* sending = NULL;
  int tag = 0, posted = 0;
  for (; posted < kDepth; ++posted) {
    void* place = got.data + (size_t)posted * size;
    receives[posted] = start_receive(in, 1, &place, &size, &tag, &got.memory);
  }
  barrier();
  for (int i = 0; i < rounds; ++i) {
    const double begin = now_seconds();
    if (world.rank == 1) sending = start_send(out, sent.data, size, tag, sent.memory);
    finish(receives[i % kDepth], NULL);
    if (world.rank == 0) sending = start_send(out, sent.data, size, tag, sent.memory);
    answer[i] = (now_seconds() - begin) / 2 * 1e6;
    void* place = got.data + (size_t)(i % kDepth) * size;
    receives[i % kDepth] = start_receive(in, 1, &place, &size, &tag, &got.memory);
    finish(sending, NULL);
    period[i] = (now_seconds() - begin) / 2 * 1e6;
  }
  if (world.rank == 1) {
    qsort(period, (size_t)rounds, sizeof(double), by_value);
    qsort(answer, (size_t)rounds, sizeof(double), by_value);
    printf(
        "{\"what\": \"latency\", \"bytes\": %zu, \"us_median\": %.3f, \"us_p99\": %.3f, "
        "\"us_min\": %.3f, \"us_answer_median\": %.3f}\n",
        size, period[rounds / 2], period[rounds * 99 / 100], period[0], answer[rounds / 2]);
    fflush(stdout);
  }
  barrier();
  free(period);
  free(answer);
  free_buffer(out, &sent);
  free_buffer(in, &got);
  close_channel(&ways[0]);
  close_channel(&ways[1]);
}

void run_bench(const char* what, const char* sizes) {
  char* list = strdup(sizes);
  for (char* item = strtok(list, ","); item != NULL; item = strtok(NULL, ",")) {
    char* unit = NULL;
    size_t size = strtoul(item, &unit, 10);
    size *= *unit == 'K' ? 1024 : *unit == 'M' ? 1024 * 1024 : 1;
    if (strcmp(what, "latency") == 0) {
      latency(size, world.rounds);
    } else {
      bandwidth(size, 1);
    }
  }
  free(list);
}
