/* Cases about data: sizes, order, groups, tags, how much is outstanding. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/conformance/cases.h"
#include "tests/conformance/link.h"

static const size_t kSizes[] = {0,    1,    7,    8,     64,     127,     128,         129,
                                4095, 4096, 4097, 65536, 262144, 1048579, 8 * 1048576, 3145728};
enum { kSizeCount = sizeof(kSizes) / sizeof(kSizes[0]), kGuard = 64 };

static void sizes(void) {
  struct channel channel = open_channel(0, world.device);
  struct buffer buffer = make_buffer(&channel, 8 * 1048576 + kGuard);
  for (int i = 0; i < kSizeCount; ++i) {
    size_t size = kSizes[i];
    int tag = 1;
    if (world.rank == 0) {
      int got[2] = {-1, -77};
      void* place = buffer.data;
      memset(buffer.data, 0xee, size + kGuard);
      finish(start_receive(&channel, 1, &place, &size, &tag, &buffer.memory), got);
      CHECK(got[0] == (int)size);
      CHECK(got[1] == -77); /* exactly n sizes are written */
      CHECK(has_pattern(buffer.data, size, (uint32_t)i));
      for (size_t g = 0; g < kGuard; ++g) CHECK(buffer.data[size + g] == 0xee);
    } else {
      int got[2] = {-1, -77};
      fill_pattern(buffer.data, size, (uint32_t)i);
      finish(start_send(&channel, buffer.data, size, tag, buffer.memory), got);
      CHECK(got[1] == -77);
    }
  }
  barrier();
  free_buffer(&channel, &buffer);
  close_channel(&channel);
}

/* `count` messages of random sizes, several in flight, in order, on one channel. */
static void stream(struct channel* channel, int count, size_t largest, int depth) {
  struct buffer buffer = make_buffer(channel, largest * (size_t)depth);
  void* requests[64] = {NULL};
  size_t size_of[64];
  uint32_t random = world.seed;
  int tag = 5;
  for (int i = 0; i < count + depth; ++i) {
    const int slot = i % depth;
    uint8_t* place = buffer.data + (size_t)slot * largest;
    if (requests[slot] != NULL) {
      int got = -1;
      finish(requests[slot], &got);
      requests[slot] = NULL;
      if (channel->receive != NULL) {
        CHECK(got == (int)size_of[slot]);
        CHECK(has_pattern(place, size_of[slot], (uint32_t)(i - depth)));
      }
    }
    if (i >= count) continue;
    size_t size = next_random(&random) % (largest + 1);
    if (next_random(&random) % 4 == 0) size %= 256;
    size_of[slot] = size;
    if (channel->receive != NULL) {
      void* target = place;
      size_t room = largest;
      requests[slot] = start_receive(channel, 1, &target, &room, &tag, &buffer.memory);
    } else {
      fill_pattern(place, size, (uint32_t)i);
      requests[slot] = start_send(channel, place, size, tag, buffer.memory);
    }
  }
  barrier();
  free_buffer(channel, &buffer);
}

static void order(void) {
  struct channel channel = open_channel(1, world.device);
  stream(&channel, 300, 40000, 8);
  close_channel(&channel);
}

static void deep(void) {
  struct channel channel = open_channel(0, world.device);
  stream(&channel, 400, 3000, NCCL_NET_MAX_REQUESTS);
  close_channel(&channel);
}

static void large(void) {
  struct channel channel = open_channel(0, world.device);
  stream(&channel, 24, 4 << 20, 4);
  close_channel(&channel);
}

/* Both directions at a time, as in a ring. */
static void both_ways(void) {
  struct channel ways[2] = {open_channel(0, world.device), open_channel(1, world.device)};
  struct channel* out = world.rank == 0 ? &ways[1] : &ways[0];
  struct channel* in = world.rank == 0 ? &ways[0] : &ways[1];
  enum { kDepth = 8, kSize = 30000, kCount = 200 };
  struct buffer sent = make_buffer(out, kDepth * kSize);
  struct buffer got = make_buffer(in, kDepth * kSize);
  void* sends[kDepth] = {NULL};
  void* receives[kDepth] = {NULL};
  int posted = 0, taken = 0, sending = 0, delivered = 0;
  const double begin = now_seconds();
  int tag = 9;
  while (taken < kCount || delivered < kCount) {
    CHECK(now_seconds() - begin < world.patience);
    if (posted < kCount && posted - taken < kDepth) {
      void* place = got.data + posted % kDepth * kSize;
      size_t room = kSize;
      void* request = NULL;
      CHECK_OK(net_irecv(&world.net, in->receive, 1, &place, &room, &tag, &got.memory, &request));
      if (request != NULL) receives[posted++ % kDepth] = request;
    }
    if (sending < kCount && sending - delivered < kDepth) {
      uint8_t* place = sent.data + sending % kDepth * kSize;
      const size_t size = (size_t)(sending * 97 % kSize);
      void* request = NULL;
      fill_pattern(place, size, (uint32_t)sending);
      CHECK_OK(net_isend(&world.net, out->send, place, size, tag, sent.memory, &request));
      if (request != NULL) sends[sending++ % kDepth] = request;
    }
    if (delivered < sending && finished(sends[delivered % kDepth], NULL)) ++delivered;
    int size = -1;
    if (taken < posted && finished(receives[taken % kDepth], &size)) {
      CHECK(size == taken * 97 % kSize);
      CHECK(has_pattern(got.data + taken % kDepth * kSize, (size_t)size, (uint32_t)taken));
      ++taken;
    }
  }
  barrier();
  free_buffer(out, &sent);
  free_buffer(in, &got);
  close_channel(&ways[0]);
  close_channel(&ways[1]);
}

static void short_receive(void) {
  struct channel channel = open_channel(0, world.device);
  struct buffer buffer = make_buffer(&channel, 1 << 20);
  size_t room = 1 << 20;
  int tag = 0, got = -1;
  void* place = buffer.data;
  if (world.rank == 0) {
    memset(buffer.data, 0xaa, buffer.size);
    finish(start_receive(&channel, 1, &place, &room, &tag, &buffer.memory), &got);
    CHECK(got == 1001);
    CHECK(has_pattern(buffer.data, 1001, 3));
    for (size_t i = 1001; i < buffer.size; ++i) CHECK(buffer.data[i] == 0xaa);
  } else {
    fill_pattern(buffer.data, 1001, 3);
    finish(start_send(&channel, buffer.data, 1001, tag, buffer.memory), NULL);
  }
  barrier();
  free_buffer(&channel, &buffer);
  close_channel(&channel);
}

/* A sender may not send before the receiver has a place: no request, and no error. */
static void early_send(void) {
  struct channel channel = open_channel(0, world.device);
  struct buffer buffer = make_buffer(&channel, 4096);
  size_t size = 4096;
  int tag = 3;
  void* place = buffer.data;
  if (world.rank == 1) {
    fill_pattern(buffer.data, size, 1);
    for (int i = 0; i < 200; ++i) {
      void* request = &channel;
      CHECK_OK(
          net_isend(&world.net, channel.send, buffer.data, size, tag, buffer.memory, &request));
      CHECK(request == NULL);
    }
    barrier();
    finish(start_send(&channel, buffer.data, size, tag, buffer.memory), NULL);
  } else {
    barrier();
    finish(start_receive(&channel, 1, &place, &size, &tag, &buffer.memory), NULL);
    CHECK(has_pattern(buffer.data, size, 1));
  }
  barrier();
  free_buffer(&channel, &buffer);
  close_channel(&channel);
}

/* Receives of 1 to 8 messages with tags in any order; the sender serves its tags in another order
 * and at other times. Message k of tag t carries the number 1000 t + k. `groups` may be open at
 * the same time. */
static void grouped_run(struct channel* channel, int rounds, int most, int groups, size_t largest) {
  enum { kTags = 8 };
  ncclNetProperties_v12_t properties;
  CHECK_OK(net_properties(&world.net, world.device, &properties));
  if (properties.maxRecvs < most) exit(SKIPPED);
  struct buffer buffer = make_buffer(channel, largest * kTags * (size_t)groups);
  uint32_t random = world.seed;
  uint32_t own = world.seed * 77u + (uint32_t)world.rank;
  int sequence[kTags] = {0}; /* next message of a tag */
  int pending_tag[4096][kTags], pending_number[4096][kTags], pending_count[4096];
  void* requests[4096];
  CHECK(rounds <= 4096);
  for (int r = 0; r < rounds; ++r) {
    int tags[kTags];
    for (int t = 0; t < kTags; ++t) tags[t] = t;
    for (int t = kTags - 1; t > 0; --t) {
      const int other = (int)(next_random(&random) % (uint32_t)(t + 1));
      const int swap = tags[t];
      tags[t] = tags[other];
      tags[other] = swap;
    }
    pending_count[r] = most > 1 ? 1 + (int)(next_random(&random) % (uint32_t)most) : 1;
    for (int i = 0; i < pending_count[r]; ++i) {
      pending_tag[r][i] = tags[i];
      pending_number[r][i] = sequence[tags[i]]++;
    }
  }
  if (channel->receive != NULL) {
    int oldest = 0;
    for (int r = 0; r < rounds || oldest < rounds; ++r) {
      while (oldest < rounds && (r >= rounds || r - oldest >= groups)) {
        int got[kTags + 1];
        const int count = pending_count[oldest];
        got[count] = -5;
        finish(requests[oldest], got);
        CHECK(got[count] == -5);
        for (int i = 0; i < count; ++i) {
          const uint32_t number =
              (uint32_t)(1000 * pending_tag[oldest][i] + pending_number[oldest][i]);
          const size_t size = number * 131u % largest;
          CHECK(got[i] == (int)size);
          CHECK(has_pattern(buffer.data + (size_t)(oldest % groups * kTags + i) * largest, size,
                            number));
        }
        ++oldest;
      }
      if (r >= rounds) continue;
      void* places[kTags];
      size_t rooms[kTags];
      int tags[kTags];
      void* memory[kTags];
      for (int i = 0; i < pending_count[r]; ++i) {
        places[i] = buffer.data + (size_t)(r % groups * kTags + i) * largest;
        rooms[i] = largest;
        tags[i] = 100 + pending_tag[r][i];
        memory[i] = buffer.memory;
      }
      requests[r] = start_receive(channel, pending_count[r], places, rooms, tags, memory);
    }
  } else {
    int sent[kTags] = {0};
    void* flying[kTags] = {NULL};
    int left = 0;
    for (int t = 0; t < kTags; ++t) left += sequence[t];
    const double begin = now_seconds();
    while (left > 0) {
      CHECK(now_seconds() - begin < world.patience);
      const int t = (int)(next_random(&own) % kTags);
      if (flying[t] != NULL) {
        if (finished(flying[t], NULL)) {
          flying[t] = NULL;
          --left;
        }
      } else if (sent[t] < sequence[t]) {
        const uint32_t number = (uint32_t)(1000 * t + sent[t]);
        const size_t size = number * 131u % largest;
        uint8_t* place = buffer.data + (size_t)t * largest;
        fill_pattern(place, size, number);
        CHECK_OK(
            net_isend(&world.net, channel->send, place, size, 100 + t, buffer.memory, &flying[t]));
        if (flying[t] != NULL) ++sent[t];
      }
    }
  }
  barrier();
  free_buffer(channel, &buffer);
}

static void grouped(void) {
  struct channel channel = open_channel(0, world.device);
  grouped_run(&channel, 120, 8, 1, 5000);
  close_channel(&channel);
}

static void grouped_ahead(void) {
  struct channel channel = open_channel(1, world.device);
  grouped_run(&channel, 200, 8, 8, 3000);
  close_channel(&channel);
}

/* Single receives whose tags differ from one to the next. */
static void tags_alternate(void) {
  struct channel channel = open_channel(0, world.device);
  grouped_run(&channel, 200, 1, 8, 2000);
  close_channel(&channel);
}

/* NCCL_NET_MAX_REQUESTS receives of 8 messages each, all open before the first send. */
static void outstanding(void) {
  enum { kGroups = NCCL_NET_MAX_REQUESTS, kGroup = 8, kSize = 600 };
  struct channel channel = open_channel(0, world.device);
  ncclNetProperties_v12_t properties;
  CHECK_OK(net_properties(&world.net, world.device, &properties));
  if (properties.maxRecvs < kGroup) exit(SKIPPED);
  struct buffer buffer = make_buffer(&channel, kGroups * kGroup * kSize);
  void* requests[kGroups * kGroup];
  if (world.rank == 0) {
    for (int r = 0; r < kGroups; ++r) {
      void* places[kGroup];
      size_t rooms[kGroup];
      int tags[kGroup];
      void* memory[kGroup];
      for (int i = 0; i < kGroup; ++i) {
        places[i] = buffer.data + (r * kGroup + i) * kSize;
        rooms[i] = kSize;
        tags[i] = i;
        memory[i] = buffer.memory;
      }
      requests[r] = start_receive(&channel, kGroup, places, rooms, tags, memory);
    }
    barrier();
    for (int r = 0; r < kGroups; ++r) {
      int got[kGroup];
      finish(requests[r], got);
      for (int i = 0; i < kGroup; ++i) {
        CHECK(got[i] == kSize - i);
        CHECK(has_pattern(buffer.data + (r * kGroup + i) * kSize, (size_t)(kSize - i),
                          (uint32_t)(r * kGroup + i)));
      }
    }
  } else {
    barrier();
    for (int m = 0; m < kGroups * kGroup; ++m) {
      const int tag = kGroup - 1 - m % kGroup;
      const int number = m / kGroup * kGroup + tag;
      uint8_t* place = buffer.data + number * kSize;
      fill_pattern(place, (size_t)(kSize - tag), (uint32_t)number);
      requests[m] = start_send(&channel, place, (size_t)(kSize - tag), tag, buffer.memory);
    }
    for (int m = kGroups * kGroup - 1; m >= 0; --m) finish(requests[m], NULL);
  }
  barrier();
  free_buffer(&channel, &buffer);
  close_channel(&channel);
}

/* NCCL says that it does not need the completion: the data has to come all the same. */
static void optional_completion(void) {
  if (world.version < 9) exit(SKIPPED);
  enum { kCount = 600, kDepth = 8, kSize = 64 };
  struct channel channel = open_channel(0, world.device);
  struct buffer buffer = make_buffer(&channel, kCount * kSize);
  const double begin = now_seconds();
  int tag = 2;
  if (world.rank == 0) {
    void* requests[kDepth] = {NULL};
    for (int i = 0; i < kCount + kDepth; ++i) {
      if (i >= kDepth) {
        /* What the GPU does: look at the last byte, which is never 0, until it is there. */
        volatile uint8_t* flag = buffer.data + (i - kDepth) * kSize + kSize - 1;
        while (*flag == 0) {
          CHECK(now_seconds() - begin < world.patience);
          usleep(20);
        }
        __sync_synchronize();
        CHECK(*flag == 1 + (i - kDepth) % 255);
        if (requests[i % kDepth] != NULL) finish(requests[i % kDepth], NULL);
      }
      if (i >= kCount) continue;
      void* place = buffer.data + i * kSize;
      size_t room = kSize;
      void* request = NULL;
      while (request == NULL) {
        request = (void*)(uintptr_t)NCCL_NET_OPTIONAL_RECV_COMPLETION;
        CHECK_OK(net_irecv(&world.net, channel.receive, 1, &place, &room, &tag, &buffer.memory,
                           &request));
        CHECK(request != (void*)(uintptr_t)NCCL_NET_OPTIONAL_RECV_COMPLETION);
        CHECK(now_seconds() - begin < world.patience);
      }
      requests[i % kDepth] = request;
      /* A plugin may say "done" before anything came. */
      if (i % 2 == 0 && finished(request, NULL)) requests[i % kDepth] = NULL;
    }
  } else {
    for (int i = 0; i < kCount; ++i) {
      uint8_t* place = buffer.data + i * kSize;
      place[kSize - 1] = (uint8_t)(1 + i % 255);
      finish(start_send(&channel, place, kSize, tag, buffer.memory), NULL);
    }
  }
  barrier();
  free_buffer(&channel, &buffer);
  close_channel(&channel);
}

static void flush(void) {
  struct channel channel = open_channel(0, world.device);
  struct buffer buffer = make_buffer(&channel, 8192);
  size_t room = 4096;
  int tag = 0;
  for (int i = 0; i < 600; ++i) {
    if (world.rank == 1) {
      buffer.data[0] = (uint8_t)i;
      finish(start_send(&channel, buffer.data, 1, tag, buffer.memory), NULL);
      continue;
    }
    int got = -1;
    void* place = buffer.data;
    void* request = NULL;
    finish(start_receive(&channel, 1, &place, &room, &tag, &buffer.memory), &got);
    CHECK_OK(net_iflush(&world.net, channel.receive, 1, &place, &got, &buffer.memory, &request));
    if (request != NULL) finish(request, NULL);
    CHECK(buffer.data[0] == (uint8_t)i);
  }
  barrier();
  free_buffer(&channel, &buffer);
  close_channel(&channel);
}

struct registering {
  struct channel* channel;
  atomic_int stop;
};

static void* register_again_and_again(void* argument) {
  struct registering* work = argument;
  uint32_t random = 7;
  while (!work->stop) {
    struct buffer buffer = make_buffer(work->channel, 4096 * (1 + next_random(&random) % 16));
    free_buffer(work->channel, &buffer);
  }
  return NULL;
}

/* NCCL's service thread registers memory on the comm that its progress thread sends on. */
static void register_meanwhile(void) {
  struct channel channel = open_channel(0, world.device);
  struct registering work = {&channel, 0};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, register_again_and_again, &work) == 0);
  stream(&channel, 200, 20000, 8);
  work.stop = 1;
  pthread_join(thread, NULL);
  close_channel(&channel);
}

/* One message of more than 4 GiB. The buffer repeats a few pages, so it costs no memory. */
static void huge(void) {
  ncclNetProperties_v12_t properties;
  CHECK_OK(net_properties(&world.net, world.device, &properties));
  const size_t size = ((size_t)4 << 30) + ((size_t)192 << 20) + 12345;
  if (world.version < 9 || properties.maxP2pBytes < size || getenv("CONFORMANCE_HUGE") == NULL) {
    exit(SKIPPED);
  }
  const size_t page = 64 << 20;
  const size_t whole = (size + page - 1) / page * page;
  /* The same page again and again, but for the last one: a length cut to 32 bits leaves that empty.
   */
  const int file = memfd_create("huge", 0), last = memfd_create("huge's end", 0);
  CHECK(ftruncate(file, (off_t)page) == 0 && ftruncate(last, (off_t)page) == 0);
  uint8_t* data = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (size_t at = 0; at < whole; at += page) {
    CHECK(mmap(data + at, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
               at + page < whole ? file : last, 0) == data + at);
  }
  uint8_t* const end = data + whole - page;
  const size_t rest = size - (whole - page);
  if (world.rank == 1) {
    fill_pattern(data, page, 5);
    fill_pattern(end, rest, 6);
  }
  struct channel channel = open_channel(0, world.device);
  void* comm = world.rank == 0 ? channel.receive : channel.send;
  void* memory = NULL;
  CHECK_OK(net_register(&world.net, comm, data, whole, &memory));
  void* place = data;
  size_t room = size;
  int tag = 0;
  if (world.rank == 0) {
    finish(start_receive(&channel, 1, &place, &room, &tag, &memory), NULL);
    CHECK(has_pattern(data, page, 5));
    CHECK(has_pattern(end, rest, 6));
  } else {
    finish(start_send(&channel, data, size, tag, memory), NULL);
  }
  barrier();
  CHECK_OK(net_deregister(&world.net, comm, memory));
  close_channel(&channel);
}

/* Merged devices, if the plugin has them and there are two. */
static void merged(void) {
  int count = 0, device = -1;
  const int members[2] = {0, 1};
  CHECK_OK(net_devices(&world.net, &count));
  if (count < 2) exit(SKIPPED);
  CHECK_OK(net_merge(&world.net, members, 2, &device));
  if (device < 0) exit(SKIPPED);
  ncclNetProperties_v12_t properties;
  int now = 0;
  CHECK_OK(net_devices(&world.net, &now));
  CHECK(now == count + 1 && device == count);
  CHECK_OK(net_properties(&world.net, device, &properties));
  CHECK(properties.vProps.ndevs == 2);
  struct channel channel = open_channel(0, device);
  stream(&channel, 60, 1 << 20, 8);
  grouped_run(&channel, 60, 8, 4, 5000);
  close_channel(&channel);
  const int twice[2] = {0, 0};
  CHECK(net_merge(&world.net, twice, 2, &now) != ncclSuccess);
}

const struct test_case transfer_cases[] = {
    {"sizes", sizes},
    {"order", order},
    {"deep", deep},
    {"large", large},
    {"both_ways", both_ways},
    {"short_receive", short_receive},
    {"early_send", early_send},
    {"grouped", grouped},
    {"grouped_ahead", grouped_ahead},
    {"tags_alternate", tags_alternate},
    {"outstanding", outstanding},
    {"optional_completion", optional_completion},
    {"flush", flush},
    {"register_meanwhile", register_meanwhile},
    {"huge", huge},
    {"merged", merged},
    {NULL, NULL},
};
