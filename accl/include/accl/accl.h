// What a C program needs beside NCCL's interface when its buffers lie in host memory.
//
// Streams. A host stream is a thread that runs what is enqueued on it, one operation after the
// other. It passes as cudaStream_t to every nccl* function. An operation given a stream returns at
// once; it has ended when acclStreamSynchronize() returns. Without a stream (NULL, and also CUDA's
// two special values 1 and 2) an operation of a blocking communicator has ended when the call
// returns; one of a non-blocking communicator has ended when ncclCommGetAsyncError() no longer
// answers ncclInProgress. Operations of one communicator run in the order in which they were
// issued, also across streams.
//
// Forks. Communicators and streams stay with the process that made them: in a forked child each
// call with one answers ncclInvalidUsage. The child may make its own.
//
// Where a function takes part in a group: none of these does.
// C, so what clang-tidy wants of C++ does not apply.
// NOLINTBEGIN
#ifndef ACCL_ACCL_H_
#define ACCL_ACCL_H_

#include <stddef.h>

#include "accl/nccl.h"

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

// Starts a stream. ncclSystemError: no thread could be started.
ncclResult_t acclStreamCreate(cudaStream_t* stream);
// Waits until everything enqueued so far has run. Answers the first failure since the last call
// (its sentence: ncclGetLastError(NULL) on this thread) and forgets it.
ncclResult_t acclStreamSynchronize(cudaStream_t stream);
// ncclSuccess: nothing is left to run. ncclInProgress: something is. A failure is left for
// acclStreamSynchronize.
ncclResult_t acclStreamQuery(cudaStream_t stream);
// Enqueues a call of `function(argument)`, between the operations: what cudaLaunchHostFunc is for
// CUDA's streams.
ncclResult_t acclStreamEnqueue(cudaStream_t stream, void (*function)(void*), void* argument);
// Waits until the stream has run everything and ends its thread. Not from a function that runs on
// the stream itself.
ncclResult_t acclStreamDestroy(cudaStream_t stream);

// "ACCL 0.1.0 (NCCL 2.29.7)". Also tells at run time whether libaccl.so serves the nccl* names.
const char* acclVersion(void);
// The sentence of the last error on this thread or, where that is newer, of the communicator:
// ncclGetLastError for a caller who wants its own copy. Writes at most `size` bytes with the 0 at
// the end; returns the length it has in full.
size_t acclLastError(ncclComm_t comm, char* text, size_t size);
// How long operations and creations of this process may take unless they say otherwise, seconds;
// more than 0. Counts for communicators created afterwards. ACCL_TIMEOUT in the environment is the
// default (1800).
ncclResult_t acclSetTimeout(double seconds);

#ifdef __cplusplus
}  // extern "C"
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif  // ACCL_ACCL_H_
// NOLINTEND
