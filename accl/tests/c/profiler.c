/* A profiler's way in: it defines an nccl* name itself and calls the pnccl* twin. */
#include <accl/accl.h>
#include <stdio.h>

static int calls;

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  ++calls;
  return pncclAllReduce(sendbuff, recvbuff, count, datatype, op, comm, stream);
}

int main(void) {
  ncclComm_t comm;
  int value = 3;
  int result = 0;
  cudaStream_t stream;
  if (ncclCommInitAll(&comm, 1, NULL) != ncclSuccess || acclStreamCreate(&stream) != ncclSuccess ||
      ncclAllReduce(&value, &result, 1, ncclInt, ncclSum, comm, stream) != ncclSuccess ||
      acclStreamSynchronize(stream) != ncclSuccess || acclStreamDestroy(stream) != ncclSuccess ||
      ncclCommDestroy(comm) != ncclSuccess) {
    char text[256];
    acclLastError(NULL, text, sizeof(text));
    fprintf(stderr, "%s\n", text);
    return 1;
  }
  printf("%d call, result %d\n", calls, result);
  return 0;
}
