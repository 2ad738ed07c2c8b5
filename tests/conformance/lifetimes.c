/* Cases about beginnings and ends: properties, many connections, abandoned and aborted ones,
 * outages, a peer that dies. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conformance/cases.h"
#include "tests/conformance/link.h"

static void properties(void) {
  int count = 0;
  CHECK(strlen(net_name(&world.net)) > 0);
  CHECK_OK(net_devices(&world.net, &count));
  CHECK(count > 0);
  const char* names[64];
  for (int i = 0; i < count && i < 64; ++i) {
    ncclNetProperties_v12_t p;
    CHECK_OK(net_properties(&world.net, i, &p));
    CHECK(p.name != NULL && strlen(p.name) > 0);
    for (int j = 0; j < i; ++j) CHECK(strcmp(names[j], p.name) != 0);
    names[i] = p.name;
    CHECK((p.ptrSupport & NCCL_PTR_HOST) != 0);
    CHECK(p.speed > 0);
    CHECK(p.maxComms > 0);
    CHECK(p.maxRecvs >= 1 && p.maxRecvs <= 8);
    CHECK(p.netDeviceType == NCCL_NET_DEVICE_HOST);
    CHECK(p.maxP2pBytes > 0 && p.maxP2pBytes <= NCCL_MAX_NET_SIZE_BYTES);
    CHECK(p.vProps.ndevs >= 1);
  }
}

/* One message from rank 1 to rank 0. */
static void one_message(struct channel* channel, uint32_t number) {
  struct buffer buffer = make_buffer(channel, 50000);
  void* place = buffer.data;
  size_t room = buffer.size;
  int tag = 1, got = 0;
  if (channel->receive != NULL) {
    finish(start_receive(channel, 1, &place, &room, &tag, &buffer.memory), &got);
    CHECK(got == 45678);
    CHECK(has_pattern(buffer.data, 45678, number));
  } else {
    fill_pattern(buffer.data, 45678, number);
    finish(start_send(channel, buffer.data, 45678, tag, buffer.memory), NULL);
  }
  free_buffer(channel, &buffer);
}

static void many_connections(void) {
  enum { kMany = 24 };
  struct channel channels[kMany];
  for (int i = 0; i < kMany; ++i) channels[i] = open_channel(i % 2, world.device);
  for (int i = 0; i < kMany; ++i) one_message(&channels[i], (uint32_t)i);
  barrier();
  for (int i = kMany - 1; i >= 0; --i) close_channel(&channels[i]);
}

/* NCCL stops calling connect or accept whenever it likes, and closes listeners nobody used. */
static void abandoned(void) {
  char handle[NCCL_NET_HANDLE_MAXSIZE];
  for (int round = 0; round < 4; ++round) {
    void* comm = NULL;
    if (world.rank == 0) {
      void* listen_comm = NULL;
      CHECK_OK(net_listen(&world.net, world.device, handle, &listen_comm));
      send_bytes(handle, sizeof(handle));
      for (int i = 0; i < 20 * round; ++i) {
        if (comm == NULL) CHECK_OK(net_accept(&world.net, listen_comm, &comm));
        usleep(100);
      }
      barrier();
      CHECK_OK(net_close_listen(&world.net, listen_comm));
      if (comm != NULL) CHECK_OK(net_close_receive(&world.net, comm));
    } else {
      receive_bytes(handle, sizeof(handle));
      /* Always fewer calls than a connection takes. */
      for (int i = 0; i < round; ++i) {
        if (comm == NULL) CHECK_OK(net_connect(&world.net, world.device, handle, &comm));
      }
      barrier();
      if (comm != NULL) CHECK_OK(net_close_send(&world.net, comm));
    }
  }
  struct channel channel = open_channel(0, world.device);
  one_message(&channel, 5);
  barrier();
  close_channel(&channel);
}

/* Several connectors at one listener, advanced in turns. */
static void interleaved_connects(void) {
  enum { kMany = 6 };
  char handles[kMany][NCCL_NET_HANDLE_MAXSIZE];
  struct channel channels[kMany];
  void* listeners[kMany];
  memset(channels, 0, sizeof(channels));
  for (int i = 0; i < kMany && world.rank == 0; ++i) {
    CHECK_OK(net_listen(&world.net, world.device, handles[i], &listeners[i]));
  }
  world.rank == 0 ? send_bytes(handles, sizeof(handles)) : receive_bytes(handles, sizeof(handles));
  const double begin = now_seconds();
  for (int open = 0; open < kMany;) {
    open = 0;
    CHECK(now_seconds() - begin < world.patience);
    for (int i = 0; i < kMany; ++i) {
      void** comm = world.rank == 0 ? &channels[i].receive : &channels[i].send;
      if (*comm != NULL) {
        ++open;
      } else if (world.rank == 0) {
        CHECK_OK(net_accept(&world.net, listeners[i], comm));
      } else {
        CHECK_OK(net_connect(&world.net, world.device, handles[i], comm));
      }
    }
  }
  for (int i = 0; i < kMany; ++i) one_message(&channels[i], (uint32_t)(40 + i));
  barrier();
  for (int i = 0; i < kMany; ++i) {
    if (world.rank == 0) CHECK_OK(net_close_listen(&world.net, listeners[i]));
    close_channel(&channels[i]);
  }
}

/* Receives that are never matched are open when the connection closes, as at NCCL's teardown. */
static void open_receives(void) {
  struct channel channel = open_channel(0, world.device);
  struct buffer buffer = make_buffer(&channel, 8192);
  size_t room = 1024;
  int tag = 4;
  if (world.rank == 0) {
    for (int i = 0; i < 8; ++i) {
      void* place = buffer.data + i * 1024;
      start_receive(&channel, 1, &place, &room, &tag, &buffer.memory);
    }
  }
  barrier();
  const double begin = now_seconds();
  free_buffer(&channel, &buffer);
  close_channel(&channel);
  CHECK(now_seconds() - begin < 2);
  barrier();
}

/* An abort: whatever is under way, close returns soon, whichever end goes first. */
static void aborted(void) {
  for (int round = 0; round < 4; ++round) {
    struct channel channel = open_channel(0, world.device);
    struct buffer buffer = make_buffer(&channel, 8 << 20);
    size_t room = 1 << 20;
    int tag = 4;
    /* The other end may be gone already: whatever these return is right. */
    for (int i = 0; i < 8; ++i) {
      void* place = buffer.data + (i << 20);
      void* request = NULL;
      if (world.rank == 0) {
        net_irecv(&world.net, channel.receive, 1, &place, &room, &tag, &buffer.memory, &request);
      } else {
        for (int try = 0; try < 1000 && request == NULL; ++try) {
          net_isend(&world.net, channel.send, place, room, tag, buffer.memory, &request);
        }
      }
    }
    if (round % 2 == world.rank) usleep(20000);
    const double begin = now_seconds();
    free_buffer(&channel, &buffer);
    close_channel(&channel);
    CHECK(now_seconds() - begin < 2);
  }
  barrier();
  struct channel channel = open_channel(1, world.device);
  one_message(&channel, 6);
  barrier();
  close_channel(&channel);
}

static void again_and_again(void) {
  for (int round = 0; round < 3; ++round) {
    struct channel channel = open_channel(round % 2, world.device);
    one_message(&channel, (uint32_t)round);
    barrier();
    close_channel(&channel);
    plugin_down();
    plugin_up();
  }
}

/* What the process holds. */
struct holdings {
  int descriptors, threads, mappings;
  size_t heap;
};

static int entries(const char* folder) {
  DIR* directory = opendir(folder);
  CHECK(directory != NULL);
  int count = 0;
  while (readdir(directory) != NULL) ++count;
  closedir(directory);
  return count;
}

static int lines(const char* path) {
  FILE* file = fopen(path, "r");
  CHECK(file != NULL);
  int count = 0;
  for (int c; (c = fgetc(file)) != EOF;) count += c == '\n';
  fclose(file);
  return count;
}

static struct holdings take_stock(void) {
  const struct mallinfo2 heap = mallinfo2();
  return (struct holdings){.descriptors = entries("/proc/self/fd"),
                           .threads = entries("/proc/self/task"),
                           .mappings = lines("/proc/self/maps"),
                           .heap = heap.uordblks + heap.hblkhd};
}

/* A job of weeks makes many communicators: each must give back all that it took. */
static void gives_back(void) {
  enum { kFirst = 4, kMore = 48, kMostBytes = 24 << 10, kMostMappings = 4 };
  struct holdings before = {0};
  for (int round = 0; round < kFirst + kMore; ++round) {
    if (round == kFirst) before = take_stock();
    struct channel channel = open_channel(round % 2, world.device);
    one_message(&channel, (uint32_t)round);
    barrier();
    close_channel(&channel);
    if (round % 2 == 1) { /* the last communicator ends: NCCL finalizes */
      plugin_down();
      plugin_up();
    }
  }
  const struct holdings after = take_stock();
  CHECK(after.descriptors == before.descriptors);
  CHECK(after.threads == before.threads);
/* A sanitizer's allocator keeps what it likes. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(after.mappings <= before.mappings + kMostMappings);
  CHECK(after.heap <= before.heap + kMostBytes); /* what the loader and retries take once */
#endif
}

/* A second communicator's context lives on when the first one goes. */
static void two_contexts(void) {
  void* first = world.net.context;
  CHECK_OK(net_init(&world.net));
  struct channel channel = open_channel(0, world.device);
  void* second = world.net.context;
  if (world.version >= 11) {
    CHECK(first != second);
    world.net.context = first;
    CHECK_OK(net_finalize(&world.net));
    world.net.context = second;
  }
  one_message(&channel, 3);
  barrier();
  close_channel(&channel);
}

/* A child of fork, as a data loader is, must not disturb its parent by ending. */
static void forked_child(void) {
#ifdef __SANITIZE_ADDRESS__
  exit(SKIPPED); /* its allocator's locks may be held by threads that the child has not */
#endif
  struct channel channel = open_channel(0, world.device);
  one_message(&channel, 1);
  const pid_t child = fork();
  if (child == 0) {
    void* memory = malloc(1 << 20);
    memset(memory, 1, 1 << 20);
    free(memory);
    exit(0); /* runs the destructors of the plugin */
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  one_message(&channel, 2);
  barrier();
  close_channel(&channel);
}

/* The peer dies with messages under way: the survivor gets an error, not a hang. */
static void peer_dies(void) {
  struct channel channel = open_channel(world.seed % 2 == 0 ? 0 : 1, world.device);
  struct buffer buffer = make_buffer(&channel, 1 << 20);
  one_message(&channel, 1);
  barrier();
  if (world.rank == 1) {
    signal(SIGTERM, SIG_DFL);
    raise(SIGKILL);
  }
  void* place = buffer.data;
  size_t size = buffer.size;
  int tag = 4, done = 0;
  void* request = NULL;
  const double begin = now_seconds();
  ncclResult_t result = ncclSuccess;
  while (result == ncclSuccess) {
    if (request != NULL) {
      result = net_test(&world.net, request, &done, NULL);
      CHECK(!done);
    } else if (channel.receive != NULL) {
      result =
          net_irecv(&world.net, channel.receive, 1, &place, &size, &tag, &buffer.memory, &request);
    } else {
      result = net_isend(&world.net, channel.send, place, size, tag, buffer.memory, &request);
    }
    CHECK(now_seconds() - begin < world.patience);
  }
  CHECK(result == ncclRemoteError || result == ncclSystemError);
  const double closing = now_seconds();
  free_buffer(&channel, &buffer);
  close_channel(&channel);
  CHECK(now_seconds() - closing < 2);
}

/* What else ends with a process takes its time, after the plugin's destructors. */
static int lingers = 0;
__attribute__((destructor)) static void linger(void) {
  if (lingers) usleep(200000);
}

static struct channel busy;
static struct buffer busy_buffer;

/* Until the peer is gone. */
static void* work_on(void* unused) {
  (void)unused;
  void* place = busy_buffer.data;
  void* request = NULL;
  int tag = 3, done = 0;
  ncclResult_t result = ncclSuccess;
  while (result == ncclSuccess) {
    if (request != NULL) {
      result = net_test(&world.net, request, &done, NULL);
      if (done) request = NULL;
    } else if (busy.receive != NULL) {
      result = net_irecv(&world.net, busy.receive, 1, &place, &busy_buffer.size, &tag,
                         &busy_buffer.memory, &request);
    } else {
      result = net_isend(&world.net, busy.send, place, busy_buffer.size, tag, busy_buffer.memory,
                         &request);
    }
  }
  return NULL;
}

/* A process that ends without closing anything, while its progress thread works. */
static void ends_busy(void) {
  pthread_t thread;
  busy = open_channel(0, world.device);
  busy_buffer = make_buffer(&busy, 1 << 16);
  CHECK(pthread_create(&thread, NULL, work_on, NULL) == 0);
  usleep(20000);
  barrier();
  lingers = 1;
  exit(0);
}

/* Pacing of one peer at a time (TIDE_NET_PACING_PEERS=1): a head that this process has sent to
 * itself holds up the one to the other rank, until it is acknowledged; which must be noticed though
 * nobody calls the connection any more that the acknowledgement comes on. */
static void late_acknowledgement(void) {
  const char* peers = getenv("TIDE_NET_PACING_PEERS");
  if (peers == NULL || strcmp(peers, "1") != 0) exit(SKIPPED);
  struct channel channel = open_channel(1, world.device);
  struct buffer buffer = make_buffer(&channel, 4096);
  void* place = buffer.data;
  size_t size = 1024;
  int tag = 6;
  if (world.rank == 1) {
    void* request = start_receive(&channel, 1, &place, &size, &tag, &buffer.memory);
    barrier();
    finish(request, NULL);
    barrier();
  } else {
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    struct channel self = {NULL, NULL};
    void *listen_comm = NULL, *request = NULL;
    CHECK_OK(net_listen(&world.net, world.device, handle, &listen_comm));
    const double begin = now_seconds();
    while (self.send == NULL || self.receive == NULL) {
      if (self.send == NULL) CHECK_OK(net_connect(&world.net, world.device, handle, &self.send));
      if (self.receive == NULL) CHECK_OK(net_accept(&world.net, listen_comm, &self.receive));
      CHECK(now_seconds() - begin < world.patience);
    }
    CHECK_OK(net_close_listen(&world.net, listen_comm));
    barrier();
    void* received = start_receive(&self, 1, &place, &size, &tag, &buffer.memory);
    finish(start_send(&self, buffer.data + 2048, size, tag, buffer.memory), NULL);
    for (int i = 0; i < 1000; ++i) {
      CHECK_OK(net_isend(&world.net, channel.send, place, size, tag, buffer.memory, &request));
      CHECK(request == NULL);
    }
    finish(received, NULL);
    finish(start_send(&channel, place, size, tag, buffer.memory), NULL);
    barrier();
    close_channel(&self);
  }
  free_buffer(&channel, &buffer);
  close_channel(&channel);
}

/* Ends that must not talk to each other (CONFORMANCE_REFUSE: "connector", "both"): an error there,
 * not a hang, and nothing connected. */
static void refused(void) {
  const char* who = getenv("CONFORMANCE_REFUSE");
  if (who == NULL) exit(SKIPPED);
  char handle[NCCL_NET_HANDLE_MAXSIZE];
  void* comm = NULL;
  const double begin = now_seconds();
  if (world.rank == 0) {
    void* listen_comm = NULL;
    char done = 0;
    int errors = 0;
    CHECK_OK(net_listen(&world.net, world.device, handle, &listen_comm));
    send_bytes(handle, sizeof(handle));
    while (recv(world.pipe, &done, 1, MSG_DONTWAIT) != 1) {
      errors += net_accept(&world.net, listen_comm, &comm) != ncclSuccess;
      CHECK(comm == NULL);
      CHECK(now_seconds() - begin < world.patience);
    }
    CHECK(errors == (strcmp(who, "both") == 0));
    CHECK_OK(net_close_listen(&world.net, listen_comm));
  } else {
    ncclResult_t result = ncclSuccess;
    receive_bytes(handle, sizeof(handle));
    while (result == ncclSuccess) {
      result = net_connect(&world.net, world.device, handle, &comm);
      CHECK(comm == NULL);
      CHECK(now_seconds() - begin < world.patience);
    }
    send_bytes("d", 1);
  }
}

/* Traffic for as long as CONFORMANCE_SECONDS says, while somebody else (a fault script, a link that
 * is cut) breaks things; every byte must be right. Prints the rate of each half second. */
static void outage(void) {
  const char* seconds = getenv("CONFORMANCE_SECONDS");
  if (seconds == NULL) exit(SKIPPED);
  enum { kDepth = 4, kSize = 1 << 18 };
  int device = world.device;
  const int members[2] = {0, 1};
  if (getenv("CONFORMANCE_MERGE") != NULL) {
    CHECK_OK(net_merge(&world.net, members, 2, &device));
    CHECK(device >= 0);
  }
  struct channel channel = open_channel(0, device);
  struct buffer buffer = make_buffer(&channel, kDepth * kSize);
  void* requests[kDepth] = {NULL};
  const double begin = now_seconds();
  double mark = begin;
  int tag = 1, taken = 0, last_taken = 0, stop = 0;
  for (int i = 0; !stop; ++i) {
    uint8_t* data = buffer.data + i % kDepth * kSize;
    void* place = data;
    size_t size = kSize;
    if (i >= kDepth) {
      int got = 0;
      finish(requests[i % kDepth], &got);
      CHECK(got == kSize);
      ++taken;
      if (world.rank == 0) {
        const uint32_t number = (uint32_t)(i - kDepth);
        CHECK(has_pattern(data + 1, kSize - 1, number));
        stop = data[0];
      }
    }
    if (now_seconds() - mark > 0.5) {
      if (world.rank == 0) {
        printf("  %.1f s %.0f MB/s\n", now_seconds() - begin,
               (taken - last_taken) * (double)kSize / 1e6 / (now_seconds() - mark));
        fflush(stdout);
      }
      mark = now_seconds();
      last_taken = taken;
    }
    if (world.rank == 0) {
      requests[i % kDepth] = start_receive(&channel, 1, &place, &size, &tag, &buffer.memory);
    } else {
      fill_pattern(data + 1, kSize - 1, (uint32_t)i);
      data[0] = now_seconds() - begin > atof(seconds) ? 1 : 0;
      requests[i % kDepth] = start_send(&channel, data, size, tag, buffer.memory);
      stop = data[0];
      for (int j = 0; stop && j < kDepth && j <= i; ++j) finish(requests[(i - j) % kDepth], NULL);
    }
  }
  barrier();
  free_buffer(&channel, &buffer);
  close_channel(&channel);
}

const struct test_case lifetime_cases[] = {
    {"properties", properties},
    {"many_connections", many_connections},
    {"abandoned", abandoned},
    {"interleaved_connects", interleaved_connects},
    {"open_receives", open_receives},
    {"aborted", aborted},
    {"again_and_again", again_and_again},
    {"gives_back", gives_back},
    {"two_contexts", two_contexts},
    {"forked_child", forked_child},
    {"peer_dies", peer_dies},
    {"ends_busy", ends_busy},
    {"late_acknowledgement", late_acknowledgement},
    {"refused", refused},
    {"outage", outage},
    {NULL, NULL},
};
