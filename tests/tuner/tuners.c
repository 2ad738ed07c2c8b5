#define _GNU_SOURCE
#include "tests/tuner/tuners.h"

#include <dlfcn.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "plugin/nccl/tuner_v2.h"
#include "plugin/nccl/tuner_v3.h"
#include "plugin/nccl/tuner_v4.h"
#include "plugin/nccl/tuner_v5.h"
#include "plugin/nccl/tuner_v6.h"

static void* library;
static struct {
  const ncclTuner_v2_t* v2;
  const ncclTuner_v3_t* v3;
  const ncclTuner_v4_t* v4;
  const ncclTuner_v5_t* v5;
  const ncclTuner_v6_t* v6;
} tuners;

static void die(const char* what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static void must(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "%s returned %d: NCCL ends the job\n", what, result);
  exit(1);
}

Table table_make(int algorithms, int protocols) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  Table table = {.algorithms = algorithms, .protocols = protocols};
  table.pages = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (table.pages == MAP_FAILED || mprotect(table.pages, page, PROT_NONE) != 0 ||
      mprotect(table.pages + 2 * page, page, PROT_NONE) != 0)
    die("no memory for a table");
  const size_t bytes = (size_t)(algorithms * protocols) * sizeof(float);
  table.cells = (float*)(table.pages + 2 * page - bytes);
  memset(table.pages + page, 0x5A, page - bytes);
  return table;
}

void table_free(Table* table) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  for (const char* at = table->pages + page; at < (const char*)table->cells; ++at)
    if (*at != 0x5A) die("bytes in front of the cost table were written");
  munmap(table->pages, 3 * page);
}

void table_fill(Table* table) {
  for (int i = 0; i < table->algorithms * table->protocols; ++i) table->cells[i] = 10 + (float)i;
}

void library_open(const char* path) {
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) die(dlerror());
  tuners.v2 = dlsym(library, "ncclTunerPlugin_v2");
  tuners.v3 = dlsym(library, "ncclTunerPlugin_v3");
  tuners.v4 = dlsym(library, "ncclTunerPlugin_v4");
  tuners.v5 = dlsym(library, "ncclTunerPlugin_v5");
  tuners.v6 = dlsym(library, "ncclTunerPlugin_v6");
  if (!tuners.v2 || !tuners.v3 || !tuners.v4 || !tuners.v5 || !tuners.v6) die(dlerror());
}

void library_close(void) { dlclose(library); }

Tuner tuner_init(int version, size_t ranks, size_t nodes, ncclDebugLogger_t log) {
  Tuner tuner = {.version = version, .context = (void*)-1};
  ncclTunerConstants_v5_t constants = {0}, untouched = {0};
  ncclNvlDomainInfo_v5_t domains = {1, (int)ranks, (int)ranks};
  const uint64_t comm = 0xC0FFEE;
  switch (version) {
    case 2:
      must(tuners.v2->init(ranks, nodes, log, &tuner.context), "init");
      break;
    case 3:
      must(tuners.v3->init(ranks, nodes, log, &tuner.context), "init");
      break;
    case 4:
      must(tuners.v4->init(ranks, nodes, log, &tuner.context), "init");
      break;
    case 5:
      must(tuners.v5->init(&tuner.context, comm, ranks, nodes, log, &domains, &constants), "init");
      break;
    default:
      must(tuners.v6->init(&tuner.context, comm, ranks, nodes, log,
                           (ncclNvlDomainInfo_v6_t*)&domains, (ncclTunerConstants_v6_t*)&constants),
           "init");
  }
  if (memcmp(&constants, &untouched, sizeof(constants)) != 0) die("init edits NCCL's constants");
  if (tuner.context == (void*)-1) die("init did not set the context");
  return tuner;
}

void tuner_finalize(Tuner* tuner) {
  switch (tuner->version) {
    case 2:
      must(tuners.v2->destroy(tuner->context), "destroy");
      break;
    case 3:
      must(tuners.v3->destroy(tuner->context), "destroy");
      break;
    case 4:
      must(tuners.v4->destroy(tuner->context), "destroy");
      break;
    case 5:
      must(tuners.v5->finalize(tuner->context), "finalize");
      break;
    default:
      must(tuners.v6->finalize(tuner->context), "finalize");
  }
}

Answer table_choice(const Table* table) {
  Answer answer = {0, UNSET, UNSET};
  float least = FLT_MAX;
  for (int a = 0; a < table->algorithms; ++a) {
    for (int p = 0; p < table->protocols; ++p) {
      const float cost = table->cells[a * table->protocols + p];
      if (cost >= 0 && cost < least) {
        least = cost;
        answer.algorithm = a;
        answer.protocol = p;
      }
    }
  }
  return answer;
}

Answer tuner_ask(const Tuner* tuner, const Question* question) {
  const ncclFunc_t collective = (ncclFunc_t)question->collective;
  const size_t bytes = question->bytes;
  Table* table = question->table;
  if (tuner->version == 2) {
    Answer answer = {0, UNSET, UNSET};
    must(
        tuners.v2->getCollInfo(tuner->context, collective, bytes, question->collnet, question->nvls,
                               1, &answer.algorithm, &answer.protocol, &answer.channels),
        "getCollInfo");
    return answer;
  }
  float** costs = (float**)table->cells;
  const int algorithms = table->algorithms, protocols = table->protocols;
  int channels = 0;
  switch (tuner->version) {
    case 3:
      must(tuners.v3->getCollInfo(tuner->context, collective, bytes, 1, costs, algorithms,
                                  protocols, &channels),
           "getCollInfo");
      break;
    case 4:
      must(tuners.v4->getCollInfo(tuner->context, collective, bytes, 1, costs, algorithms,
                                  protocols, 0, &channels),
           "getCollInfo");
      break;
    case 5:
      must(tuners.v5->getCollInfo(tuner->context, collective, bytes, 1, costs, algorithms,
                                  protocols, 1, &channels),
           "getCollInfo");
      break;
    default:
      must(tuners.v6->getCollInfo(tuner->context, collective, bytes, 1, costs, algorithms,
                                  protocols, 0, &channels),
           "getCollInfo");
  }
  Answer answer = table_choice(table);
  answer.channels = channels;
  return answer;
}

size_t tuner_chunk(const Tuner* tuner, int collective, size_t bytes, int algorithm, int protocol,
                   size_t own) {
  size_t chunk = own;
  must(tuners.v6->getChunkSize(tuner->context, (ncclFunc_t)collective, bytes, algorithm, protocol,
                               1, &chunk),
       "getChunkSize");
  return chunk;
}
