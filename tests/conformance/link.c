/* Ranks, channels and buffers: see link.h. */
#define _GNU_SOURCE
#include "tests/conformance/link.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct world world;

double now_seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

uint32_t next_random(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

void send_bytes(const void* data, size_t size) {
  CHECK(write(world.pipe, data, size) == (ssize_t)size);
}

void receive_bytes(void* data, size_t size) {
  size_t got = 0;
  while (got < size) {
    ssize_t part = read(world.pipe, (char*)data + got, size - got);
    if (part < 0 && errno == EINTR) continue;
    CHECK(part > 0);
    got += (size_t)part;
  }
}

void barrier(void) {
  char byte = 'b';
  send_bytes(&byte, 1);
  receive_bytes(&byte, 1);
  CHECK(byte == 'b');
}

void plugin_up(void) {
  int devices = 0;
  CHECK(net_open(&world.net, world.path, world.version) == 0);
  CHECK_OK(net_init(&world.net));
  CHECK_OK(net_devices(&world.net, &devices));
  CHECK(devices > world.device);
}

void plugin_down(void) {
  CHECK_OK(net_finalize(&world.net));
  net_close(&world.net);
}

struct channel open_channel(int receiver, int device) {
  struct channel channel = {NULL, NULL};
  char handle[NCCL_NET_HANDLE_MAXSIZE];
  const double begin = now_seconds();
  if (world.rank == receiver) {
    void* listen_comm = NULL;
    CHECK_OK(net_listen(&world.net, device, handle, &listen_comm));
    send_bytes(handle, sizeof(handle));
    while (channel.receive == NULL) {
      CHECK_OK(net_accept(&world.net, listen_comm, &channel.receive));
      CHECK(now_seconds() - begin < world.patience);
    }
    CHECK_OK(net_close_listen(&world.net, listen_comm));
  } else {
    receive_bytes(handle, sizeof(handle));
    while (channel.send == NULL) {
      CHECK_OK(net_connect(&world.net, device, handle, &channel.send));
      CHECK(now_seconds() - begin < world.patience);
    }
  }
  return channel;
}

void close_channel(struct channel* channel) {
  if (channel->send != NULL) CHECK_OK(net_close_send(&world.net, channel->send));
  if (channel->receive != NULL) CHECK_OK(net_close_receive(&world.net, channel->receive));
}

static void* comm_of(struct channel* channel) {
  return channel->send != NULL ? channel->send : channel->receive;
}

struct buffer make_buffer(struct channel* channel, size_t size) {
  struct buffer buffer = {NULL, size, NULL};
  buffer.data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(buffer.data != MAP_FAILED);
  CHECK_OK(net_register(&world.net, comm_of(channel), buffer.data, size, &buffer.memory));
  return buffer;
}

void free_buffer(struct channel* channel, struct buffer* buffer) {
  CHECK_OK(net_deregister(&world.net, comm_of(channel), buffer->memory));
  munmap(buffer->data, buffer->size);
}

/* One more fruitless try of a wait that began at *begin (0: not looked at the clock yet). NCCL's
 * proxy yields, too, when a round of tests brought nothing. */
static void waited(int tries, double* begin) {
  sched_yield();
  if (tries % 256 != 255) return;
  if (*begin == 0) *begin = now_seconds();
  CHECK(now_seconds() - *begin < world.patience);
}

void* start_send(struct channel* channel, void* data, size_t size, int tag, void* memory) {
  double begin = 0;
  for (int tries = 0;; ++tries) {
    /* NCCL does not clear it: a plugin that forgets to write it hands out a stale request. */
    void* request = &world;
    CHECK_OK(net_isend(&world.net, channel->send, data, size, tag, memory, &request));
    CHECK(request != &world);
    if (request != NULL) return request;
    waited(tries, &begin);
  }
}

void* start_receive(struct channel* channel, int count, void** data, size_t* sizes, int* tags,
                    void** memory) {
  double begin = 0;
  for (int tries = 0;; ++tries) {
    void* request = NULL;
    CHECK_OK(net_irecv(&world.net, channel->receive, count, data, sizes, tags, memory, &request));
    if (request != NULL) return request;
    waited(tries, &begin);
  }
}

int finished(void* request, int* sizes) {
  int done = 0;
  CHECK_OK(net_test(&world.net, request, &done, sizes));
  return done;
}

void finish(void* request, int* sizes) {
  double begin = 0;
  for (int tries = 0; !finished(request, sizes); ++tries) waited(tries, &begin);
}

uint8_t pattern(uint32_t number, size_t i) { return (uint8_t)(number * 31 + i * 7 + (i >> 8) + 1); }

void fill_pattern(uint8_t* data, size_t size, uint32_t number) {
  for (size_t i = 0; i < size; ++i) data[i] = pattern(number, i);
}

int has_pattern(const uint8_t* data, size_t size, uint32_t number) {
  for (size_t i = 0; i < size; ++i) {
    if (data[i] != pattern(number, i)) return 0;
  }
  return 1;
}
