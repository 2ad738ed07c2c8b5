/* One-sided, paced transfers between the equal local ranks of several nodes, by one NIC: what
 * libnccl-net-tide.so offers to the shim. A C interface, so that the two libraries need neither the
 * same compiler nor the same release: check tide_rail_version() first.
 *
 *   open -> address -> (the caller hands the addresses round) -> connect
 *   register memory, once
 *   per collective: begin -> send / wait ... -> end
 *   close
 *
 * One tide_rail is one ordered stream of exchanges, between the same ends. All ends begin the same
 * exchanges in the same order; an exchange is a set of transfers. A transfer is a list of ranges,
 * written from this end's memory straight into the memory that the other end exposed when it began
 * the same exchange. Transfers start in the order of their sends, each when its peer has begun the
 * exchange and, with pacing, when the one before has been acknowledged by its receiver
 * (plugin/pacing/rounds.h; "The Endgame of FSDP Communication", on paced recursive doubling).
 * In a round of an exchange a node sends to at most one other, and receives from at most one.
 *
 * Every function but close returns a tide_rail_result and may be called from any thread; one
 * thread at a time may begin, send and end. A rail that failed stays failed: every call returns its
 * result, and tide_rail_error() says what happened: node, NIC, round, cause, what to do. Nothing
 * waits without a deadline. Rails of one NIC share a progress thread. */
#ifndef TIDE_RAIL_H_
#define TIDE_RAIL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TIDE_RAIL_VERSION 2
#define TIDE_RAIL_MAX_NODES 1024

typedef struct tide_rail tide_rail;

typedef enum {
  TIDE_RAIL_OK = 0,
  TIDE_RAIL_PENDING = 1,      /* not yet; only from tide_rail_test */
  TIDE_RAIL_BAD_ARGUMENT = 2, /* nothing was done; the rail goes on */
  TIDE_RAIL_NO_DEVICE = 3,    /* open: no usable NIC here */
  TIDE_RAIL_SYSTEM = 4,       /* memory, verbs or socket trouble on this node */
  TIDE_RAIL_PEER = 5,         /* another node failed, went away or broke the protocol */
  TIDE_RAIL_TIMEOUT = 6,      /* another node did not do its part in time */
  TIDE_RAIL_ABORTED = 7       /* tide_rail_abort was called here */
} tide_rail_result;

typedef enum {
  TIDE_RAIL_PACE_OFF = 0,
  TIDE_RAIL_PACE_HEAD = 1,
  TIDE_RAIL_PACE_FULL = 2
} tide_rail_pacing;

typedef struct {
  uint32_t struct_bytes; /* sizeof(tide_rail_options) */
  int32_t node;          /* this node's number, 0 <= node < nodes */
  int32_t nodes;         /* 2 to TIDE_RAIL_MAX_NODES */
  int32_t rail;          /* which rail: the local rank, for the choice of the NIC, and errors */
  int32_t rails;         /* local ranks of this node */
  const char* const* node_names; /* `nodes` texts for errors, "node 1 (rank 3)"; NULL: "node N" */
  const char* devices; /* NICs to choose from, form of NCCL_IB_HCA; NULL or "": as the net plugin's
                          settings say (TIDE_NET_DEVICES), all if they do not */
  const char* const* gpus; /* PCI addresses of the GPUs of the `rails` local ranks, "0000:19:00.0":
                              the NIC nearest to that of this rail; rails that see the same ones
                              equally near take turns. NULL, or a GPU of this rail that is NULL, ""
                              or unknown to sysfs: the rail-th usable NIC */
  const char* interface;   /* of the set-up sockets, form of NCCL_SOCKET_IFNAME; NULL or "": as the
                              net plugin's settings say (TIDE_NET_INTERFACE), by rule else */
  int32_t pacing;          /* a tide_rail_pacing; equal on all nodes */
  uint64_t head_bytes;     /* sum of the heads of one transfer; equal on all nodes */
  int32_t queue_pairs;     /* to each node, 1 to 16; equal on all nodes */
  int32_t traffic_class;   /* of data, -1: 0 */
  int32_t control_traffic_class; /* of grants and acknowledgements, -1: as the data */
  int32_t service_level;
  int32_t timeout_ms; /* of connect, and without progress of an exchange that names none */
  int32_t core;       /* the progress thread runs there; -1: anywhere */
  uint64_t spin_ns;   /* how long it polls without news before it sleeps */
  /* A line for the log, without newline; level 0 error, 1 warn, 2 info, 3 debug. May be NULL.
   * May come from the progress thread; must not call tide_rail_*. */
  void (*log)(void* context, int level, const char* line);
  void* log_context;
} tide_rail_options;

/* TIDE_RAIL_VERSION of the library. */
int tide_rail_version(void);

/* `error` gets the reason as text when the result is not OK (truncated to error_bytes). */
tide_rail_result tide_rail_open(const tide_rail_options* options, tide_rail** rail, char* error,
                                size_t error_bytes);

/* This end's address: a printable text without blanks, valid until close. */
const char* tide_rail_address(const tide_rail* rail);
/* The chosen NIC, "mlx5_0", and its speed in Mbit/s; for reports. */
const char* tide_rail_device(const tide_rail* rail);
uint32_t tide_rail_speed(const tide_rail* rail);

/* addresses[k] is that of node k, the own one included. Blocks until every pair is connected.
 * Collective over the nodes. */
tide_rail_result tide_rail_connect(tide_rail* rail, const char* const* addresses);

/* Makes memory usable in transfers, as source and as landing memory. dmabuf_fd < 0: host memory at
 * `base`. Otherwise GPU memory, `bytes` bytes at `dmabuf_offset` of the dma-buf, which the device
 * addresses as `base`. SYSTEM: the device cannot register it; the rail goes on, and the caller
 * stages through host memory. */
tide_rail_result tide_rail_register(tide_rail* rail, void* base, uint64_t bytes, int dmabuf_fd,
                                    uint64_t dmabuf_offset, uint32_t* region);
/* No exchange that is not done may use it. */
tide_rail_result tide_rail_unregister(tide_rail* rail, uint32_t region);

/* `bytes` bytes at byte `offset` of a region. */
typedef struct {
  uint32_t region;
  uint64_t offset;
  uint64_t bytes;
} tide_rail_memory;

/* Begins the next exchange and lets the other nodes write into `landing` (NULL: this end receives
 * nothing) until it is done. `what` names it in errors: "all-gather of layers.3". timeout_ms: how
 * long it may go without progress, 0: the rail's. Returns at once, unless 32 exchanges are open:
 * then it waits for the oldest. PEER when another node has ended without tide_rail_close since the
 * exchanges before were done: that alone fails nothing. *exchange: 1, 2, 3, ... */
tide_rail_result tide_rail_begin(tide_rail* rail, const tide_rail_memory* landing, const char* what,
                                 int32_t timeout_ms, uint64_t* exchange);

/* `bytes` bytes at byte `local` of the transfer's source go to byte `remote` of the landing memory
 * that the receiving node exposed for the exchange, once what this end receives in round `after` of
 * the same exchange has landed (-1: at once; the round must have been announced by then). */
typedef struct {
  uint64_t local;
  uint64_t remote;
  uint64_t bytes;
  int32_t after;
} tide_rail_range;

/* A word in host memory that both the rail and, say, a CUDA stream can reach. NULL word: none. */
typedef struct {
  volatile uint32_t* word;
  uint32_t value;
} tide_rail_flag;

typedef struct {
  int32_t node;   /* that receives */
  uint32_t round; /* 0 to 1023, growing within an exchange; gaps are allowed */
  tide_rail_memory source;
  const tide_rail_range* ranges; /* copied */
  uint32_t range_count;          /* 0: an empty transfer, which still lands */
  tide_rail_flag start;          /* the rail waits until (int32_t)(*word - value) >= 0 */
  tide_rail_flag sent;           /* the rail stores `value` when the source may be overwritten */
} tide_rail_transfer;

/* Returns at once. BAD_ARGUMENT when a range lies outside the source; the rail FAILS (PEER, naming
 * the node) when one lies outside what the receiver exposed. */
tide_rail_result tide_rail_send(tide_rail* rail, uint64_t exchange,
                                const tide_rail_transfer* transfer);

/* Announces that `node` will send in `round`: the exchange is not done before, and the rail stores
 * `landed` when all of it is in the landing memory. Every transfer that comes must be announced,
 * before or after it came. */
tide_rail_result tide_rail_expect(tide_rail* rail, uint64_t exchange, int32_t node, uint32_t round,
                                  tide_rail_flag landed);

/* Block until the transfer of `node` in `round` has landed here; until the one sent to `node` in
 * `round` no longer needs its source. Deadline: the exchange's. BAD_ARGUMENT when that one was not
 * announced, or not sent, in an exchange that is open. */
tide_rail_result tide_rail_wait_landed(tide_rail* rail, uint64_t exchange, int32_t node,
                                       uint32_t round);
tide_rail_result tide_rail_wait_sent(tide_rail* rail, uint64_t exchange, int32_t node,
                                     uint32_t round);

/* No more sends and expects in this exchange. Returns at once; it is done when everything sent is
 * acknowledged whole and everything expected has landed. */
tide_rail_result tide_rail_end(tide_rail* rail, uint64_t exchange);
/* PENDING until the exchange is done; OK also for one that was done long ago. */
tide_rail_result tide_rail_test(tide_rail* rail, uint64_t exchange);
/* tide_rail_test, blocking, up to the exchange's deadline. BAD_ARGUMENT before tide_rail_end. */
tide_rail_result tide_rail_wait(tide_rail* rail, uint64_t exchange);

typedef struct {
  uint64_t exchanges; /* done */
  uint64_t transfers; /* sent whole */
  uint64_t bytes_sent;
  uint64_t bytes_received; /* as the senders count them; up to date after their exchanges */
  uint64_t gate_ns;        /* transfers ready, held back by pacing alone */
  uint64_t repairs;        /* queue pairs replaced after a failure */
} tide_rail_stats;
tide_rail_result tide_rail_get_stats(tide_rail* rail, tide_rail_stats* stats);

/* Why the rail failed; "" while it has not. Valid until close. */
const char* tide_rail_error(tide_rail* rail);

/* Fails the rail here and, where the wire allows, at all other ends, with `reason`. */
tide_rail_result tide_rail_abort(tide_rail* rail, const char* reason);

/* Never waits for a peer. The memory of transfers under way is not touched after it returns. No
 * other call may be running. In a child of fork(): does nothing. */
void tide_rail_close(tide_rail* rail);

#ifdef __cplusplus
}
#endif

#endif /* TIDE_RAIL_H_ */
