/* Drives any NCCL net plugin as NCCL's proxy does, from two processes.
 *
 *   conformance --plugin PATH --version 7..12 [--device N | --device A,B] [--only NAME,...]
 *               [--except NAME,...] [--seed N] [--limit SECONDS_OF_A_CASE]
 *   conformance --plugin PATH --version N --bench latency|bandwidth [--sizes 8,4K,1M] [--rounds N]
 *
 * --peer-plugin: what rank 1 loads, if it is not the same; CONFORMANCE_RANK1="NAME=VALUE" is set in
 * rank 1 only. --device: the device of rank 0 and of rank 1. Every case runs in two fresh
 * processes. Ends with `N passed, N failed`. CONFORMANCE_LOG=info prints the plugin's log, =none
 * also hides warnings. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conformance/cases.h"
#include "tests/conformance/link.h"

static const char* bench = NULL;
static const char* sizes = "8,1K,64K,1M,8M";
static int devices[2] = {0, 0};
static const char* peer_plugin = NULL;
static double limit = 90;

static void too_long(int signal) {
  (void)signal;
  static const char text[] = "  took too long\n";
  (void)!write(2, text, sizeof(text) - 1);
  _exit(1);
}

static void rank_main(int rank, int pipe, void (*run)(void)) {
  world.rank = rank;
  world.pipe = pipe;
  world.device = devices[rank];
  if (rank == 1 && peer_plugin != NULL) world.path = peer_plugin;
  char* setting = getenv("CONFORMANCE_RANK1");
  if (rank == 1 && setting != NULL) putenv(strdup(setting));
  signal(SIGALRM, too_long);
  signal(SIGPIPE, SIG_IGN);
  alarm((unsigned)limit);
  world.patience = limit - 5;
  plugin_up();
  if (run != NULL) {
    run();
  } else {
    run_bench(bench, sizes);
  }
  plugin_down();
  exit(0);
}

/* Runs both ranks; 0, SKIPPED, or 1. */
static int run_pair(void (*run)(void), int expect_killed) {
  int ends[2];
  pid_t ranks[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return 1;
  fflush(stdout);
  for (int rank = 0; rank < 2; ++rank) {
    ranks[rank] = fork();
    if (ranks[rank] == 0) {
      close(ends[1 - rank]);
      rank_main(rank, ends[rank], run);
    }
  }
  close(ends[0]);
  close(ends[1]);
  int result = 0;
  for (int i = 0; i < 2; ++i) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    const int rank = ended == ranks[0] ? 0 : 1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
      if (result == 0) result = SKIPPED;
    } else if (expect_killed && rank == 1 && WIFSIGNALED(status)) {
      continue;
    } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      if (WIFSIGNALED(status))
        fprintf(stderr, "  rank %d: %s\n", rank, strsignal(WTERMSIG(status)));
      result = 1;
      if (i == 0) kill(ranks[1 - rank], SIGTERM);
    }
  }
  return result;
}

static int named(const char* list, const char* name) {
  if (list == NULL) return 1;
  const size_t length = strlen(name);
  for (const char* at = list; (at = strstr(at, name)) != NULL; at += length) {
    const int begins = at == list || at[-1] == ',';
    if (begins && (at[length] == ',' || at[length] == 0)) return 1;
  }
  return 0;
}

int main(int argc, char** argv) {
  static const struct option kOptions[] = {
      {"plugin", required_argument, NULL, 'p'},      {"version", required_argument, NULL, 'v'},
      {"device", required_argument, NULL, 'd'},      {"only", required_argument, NULL, 'o'},
      {"except", required_argument, NULL, 'x'},      {"bench", required_argument, NULL, 'b'},
      {"sizes", required_argument, NULL, 's'},       {"rounds", required_argument, NULL, 'r'},
      {"seed", required_argument, NULL, 'e'},        {"limit", required_argument, NULL, 'l'},
      {"peer-plugin", required_argument, NULL, 'P'}, {NULL, 0, NULL, 0}};
  const char* only = NULL;
  const char* except = "";
  world.version = 12;
  world.rounds = 2000;
  world.seed = 1;
  int option;
  while ((option = getopt_long(argc, argv, "", kOptions, NULL)) != -1) {
    switch (option) {
      case 'p':
        world.path = optarg;
        break;
      case 'v':
        world.version = atoi(optarg);
        break;
      case 'd':
        devices[0] = devices[1] = atoi(optarg);
        if (strchr(optarg, ',') != NULL) devices[1] = atoi(strchr(optarg, ',') + 1);
        break;
      case 'o':
        only = optarg;
        break;
      case 'x':
        except = optarg;
        break;
      case 'b':
        bench = optarg;
        break;
      case 's':
        sizes = optarg;
        break;
      case 'r':
        world.rounds = atoi(optarg);
        break;
      case 'e':
        world.seed = (unsigned)atoi(optarg);
        break;
      case 'P':
        peer_plugin = optarg;
        break;
      case 'l':
        limit = atof(optarg);
        break;
      default:
        return 2;
    }
  }
  const int benched =
      bench == NULL || strcmp(bench, "latency") == 0 || strcmp(bench, "bandwidth") == 0;
  if (world.path == NULL || world.version < 7 || world.version > 12 || !benched) {
    fprintf(stderr,
            "usage: conformance --plugin PATH --version 7..12 [--bench latency|bandwidth] "
            "[options]\n");
    return 2;
  }
  if (bench != NULL) return run_pair(NULL, 0);
  int passed = 0, failed = 0;
  const struct test_case* lists[] = {transfer_cases, lifetime_cases};
  for (int l = 0; l < 2; ++l) {
    for (const struct test_case* test = lists[l]; test->name != NULL; ++test) {
      if (!named(only, test->name) || (*except != 0 && named(except, test->name))) continue;
      const double begin = now_seconds();
      const int result = run_pair(test->run, strcmp(test->name, "peer_dies") == 0);
      printf("v%d %s: %s (%.2f s)\n", world.version, test->name,
             result == 0         ? "ok"
             : result == SKIPPED ? "skipped"
                                 : "FAILED",
             now_seconds() - begin);
      if (result == 0) ++passed;
      if (result == 1) ++failed;
    }
  }
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
