/* A program as NCCL's users write them, for host buffers. Compiles against NVIDIA's nccl.h as well as against ACCL's, knows
 * nothing of ACCL, and uses no stream. `ranks N` runs N processes and says whether each got what it should. */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 5000

#define CHECK(call)                                                                        \
  do {                                                                                     \
    ncclResult_t result_ = (call);                                                         \
    if (result_ != ncclSuccess) {                                                          \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, ncclGetErrorString(result_),  \
              ncclGetLastError(NULL));                                                     \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

#define EXPECT(condition)                                                            \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

static void collectives(ncclComm_t comm, int rank, int ranks) {
  float* one = malloc(COUNT * sizeof(float));
  float* all = malloc((size_t)ranks * COUNT * sizeof(float));
  float* out = malloc((size_t)ranks * COUNT * sizeof(float));
  const float sum = (float)(ranks * (ranks + 1) / 2);
  for (int i = 0; i < COUNT; ++i) one[i] = (float)(rank + 1);
  for (int i = 0; i < ranks * COUNT; ++i) all[i] = (float)(rank + 1);

  CHECK(ncclAllReduce(one, out, COUNT, ncclFloat, ncclSum, comm, NULL));
  EXPECT(out[0] == sum && out[COUNT - 1] == sum);
  CHECK(ncclAllReduce(one, out, COUNT, ncclFloat, ncclAvg, comm, NULL));
  EXPECT(out[COUNT - 1] == sum / (float)ranks);
  CHECK(ncclReduceScatter(all, out, COUNT, ncclFloat, ncclMax, comm, NULL));
  EXPECT(out[COUNT - 1] == (float)ranks);
  CHECK(ncclAllGather(one, out, COUNT, ncclFloat, comm, NULL));
  EXPECT(out[0] == 1 && out[ranks * COUNT - 1] == (float)ranks);
  CHECK(ncclAlltoAll(all, out, COUNT, ncclFloat, comm, NULL));
  EXPECT(out[0] == 1 && out[ranks * COUNT - 1] == (float)ranks);
  CHECK(ncclBroadcast(one, out, COUNT, ncclFloat, 0, comm, NULL));
  EXPECT(out[COUNT - 1] == 1);
  CHECK(ncclReduce(one, out, COUNT, ncclFloat, ncclProd, 0, comm, NULL));
  CHECK(ncclGather(one, out, COUNT, ncclFloat, 0, comm, NULL));
  EXPECT(rank != 0 || out[ranks * COUNT - 1] == (float)ranks);
  CHECK(ncclScatter(all, out, COUNT, ncclFloat, 0, comm, NULL));
  EXPECT(out[COUNT - 1] == 1);

  float factor = 2;
  ncclRedOp_t twice;
  CHECK(ncclRedOpCreatePreMulSum(&twice, &factor, ncclFloat, ncclScalarHostImmediate, comm));
  CHECK(ncclAllReduce(one, one, COUNT, ncclFloat, twice, comm, NULL));
  EXPECT(one[COUNT - 1] == 2 * sum);
  CHECK(ncclRedOpDestroy(twice, comm));
  free(one);
  free(all);
  free(out);
}

static void ring(ncclComm_t comm, int rank, int ranks) {
  int mine = rank;
  int left = -1;
  CHECK(ncclGroupStart());
  CHECK(ncclSend(&mine, 1, ncclInt, (rank + 1) % ranks, comm, NULL));
  CHECK(ncclRecv(&left, 1, ncclInt, (rank + ranks - 1) % ranks, comm, NULL));
  CHECK(ncclGroupEnd());
  EXPECT(left == (rank + ranks - 1) % ranks);
}

static void one_sided(ncclComm_t comm, int rank, int ranks) {
  void* memory = NULL;
  ncclWindow_t window;
  const int next = (rank + 1) % ranks;
  const int before = (rank + ranks - 1) % ranks;
  CHECK(ncclMemAlloc(&memory, sizeof(int)));
  CHECK(ncclCommWindowRegister(comm, memory, sizeof(int), &window, NCCL_WIN_COLL_SYMMETRIC));
  CHECK(ncclPutSignal(&rank, 1, ncclInt, next, window, 0, 0, 0, 0, comm, NULL));
  ncclWaitSignalDesc_t wanted = {1, before, 0, 0};
  CHECK(ncclWaitSignal(1, &wanted, comm, NULL));
  EXPECT(*(int*)memory == before);
  CHECK(ncclCommWindowDeregister(comm, window));
  CHECK(ncclMemFree(memory));
}

static int run(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.commName = "ranks";
  CHECK(ncclCommInitRankConfig(&comm, ranks, id, rank, &config));
  int count;
  int own;
  CHECK(ncclCommCount(comm, &count));
  CHECK(ncclCommUserRank(comm, &own));
  EXPECT(count == ranks && own == rank);
  collectives(comm, rank, ranks);
  ring(comm, rank, ranks);
  one_sided(comm, rank, ranks);

  ncclComm_t half;
  CHECK(ncclCommSplit(comm, rank % 2, rank, &half, NULL));
  CHECK(ncclCommCount(half, &count));
  EXPECT(count == (ranks + 1 - rank % 2) / 2);
  collectives(half, rank / 2, count);
  CHECK(ncclCommDestroy(half));

  EXPECT(ncclAllReduce(NULL, NULL, 1, ncclFloat, ncclSum, comm, NULL) == ncclInvalidArgument);
  EXPECT(strlen(ncclGetLastError(comm)) > 0);
  ncclResult_t state;
  CHECK(ncclCommGetAsyncError(comm, &state));
  EXPECT(state == ncclSuccess);
  CHECK(ncclCommFinalize(comm));
  CHECK(ncclCommDestroy(comm));
  printf("rank %d of %d: ok\n", rank, ranks);
  return 0;
}

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? atoi(argv[1]) : 2;
  int version;
  CHECK(ncclGetVersion(&version));
  EXPECT(version == NCCL_VERSION_CODE);
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() == 0) {
      alarm(60);
      return run(rank, ranks, id);
    }
  }
  int failed = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    int status;
    wait(&status);
    failed |= status;
  }
  return failed != 0;
}
