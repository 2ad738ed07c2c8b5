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
  int count = (int)(4e8 / (double)(size + 20000));
  count = count < 64 ? 64 : count;
  int tag = 0;
  /* The first run only warms up and tells how many messages fill `seconds`. */
  for (int run = 0; run < 2; ++run) {
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
    if (run == 1 && world.rank == 0) {
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
    const double wanted = count * seconds / took;
    count = wanted < kDepth ? kDepth : wanted > 1e6 ? 1000000 : (int)wanted;
  }
  free_buffer(&channel, &buffer);
  close_channel(&channel);
}

/* Ping-pong; half of the round trip. */
static void latency(size_t size, int rounds) {
  struct channel ways[2] = {open_channel(0, world.device), open_channel(1, world.device)};
  struct channel* in = world.rank == 0 ? &ways[0] : &ways[1];
  struct channel* out = world.rank == 0 ? &ways[1] : &ways[0];
  struct buffer sent = make_buffer(out, size + 1);
  struct buffer got = make_buffer(in, kDepth * (size + 1));
  double* half = malloc(sizeof(double) * (size_t)rounds);
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
    half[i] = (now_seconds() - begin) / 2 * 1e6;
    void* place = got.data + (size_t)(i % kDepth) * size;
    receives[i % kDepth] = start_receive(in, 1, &place, &size, &tag, &got.memory);
    finish(sending, NULL);
  }
  if (world.rank == 1) {
    qsort(half, (size_t)rounds, sizeof(double), by_value);
    printf(
        "{\"what\": \"latency\", \"bytes\": %zu, \"us_median\": %.3f, \"us_p99\": %.3f, "
        "\"us_min\": %.3f}\n",
        size, half[rounds / 2], half[rounds * 99 / 100], half[0]);
    fflush(stdout);
  }
  barrier();
  free(half);
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
      latency(size, world.pairs);
    } else {
      bandwidth(size, 1);
    }
  }
  free(list);
}
