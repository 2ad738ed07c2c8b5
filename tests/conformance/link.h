/* Two ranks in two processes: a pipe between them for handles and barriers, and the connections
 * that the plugin under test makes over it. A check that fails ends the rank with its file and
 * line; so does a wait that takes too long. */
#ifndef TIDE_TESTS_CONFORMANCE_LINK_H_
#define TIDE_TESTS_CONFORMANCE_LINK_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/conformance/net.h"

#define CHECK(condition)                                                                      \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "  %s:%d: rank %d: %s does not hold\n", __FILE__, __LINE__, world.rank, \
              #condition);                                                                    \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)
#define CHECK_OK(call)                                                                             \
  do {                                                                                             \
    ncclResult_t check_result = (call);                                                            \
    if (check_result != ncclSuccess) {                                                             \
      fprintf(stderr, "  %s:%d: rank %d: %s returned %d\n", __FILE__, __LINE__, world.rank, #call, \
              (int)check_result);                                                                  \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

enum { SKIPPED = 77 };

struct world {
  int rank; /* 0 or 1 */
  int pipe; /* to the other rank */
  const char* path;
  int version;
  int device;
  int rounds;      /* of a latency bench */
  unsigned seed;   /* of the order of things; the same at both ranks */
  double patience; /* seconds that any wait may take */
  struct net net;
};
extern struct world world;

double now_seconds(void);
/* Next of a pseudo-random sequence; both ranks see the same one if they call alike. */
uint32_t next_random(uint32_t* state);

void send_bytes(const void* data, size_t size);
void receive_bytes(void* data, size_t size);
void barrier(void);

/* Opens and initialises the plugin of this rank. */
void plugin_up(void);
void plugin_down(void);

/* Rank 0 receives and rank 1 sends, or the other way round. */
struct channel {
  void* send;    /* the sender's */
  void* receive; /* the receiver's */
};
struct channel open_channel(int receiver, int device);
void close_channel(struct channel* channel);

/* A buffer of `size` bytes, registered with the comm of this rank. */
struct buffer {
  uint8_t* data;
  size_t size;
  void* memory;
};
struct buffer make_buffer(struct channel* channel, size_t size);
void free_buffer(struct channel* channel, struct buffer* buffer);

/* Repeats what NCCL repeats, until there is a request. */
void* start_send(struct channel* channel, void* data, size_t size, int tag, void* memory);
void* start_receive(struct channel* channel, int count, void** data, size_t* sizes, int* tags,
                    void** memory);
void finish(void* request, int* sizes);
/* One test; 1 when done. */
int finished(void* request, int* sizes);

/* Byte `i` of message `number`. */
uint8_t pattern(uint32_t number, size_t i);
void fill_pattern(uint8_t* data, size_t size, uint32_t number);
int has_pattern(const uint8_t* data, size_t size, uint32_t number);

#endif
