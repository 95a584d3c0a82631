/* The C interface of _cuda.so. Every function returns a status; pycoll_cuda_error() says what went wrong in
 * this thread's last failed call. One thread at a time may use a group, but for pycoll_cuda_abort. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

enum { PYCOLL_CUDA_ABI = 3 };
enum { PYCOLL_CUDA_OK = 0, PYCOLL_CUDA_INVALID = 1, PYCOLL_CUDA_UNSUPPORTED = 2, PYCOLL_CUDA_FAILED = 3 };
enum {
  PYCOLL_CUDA_ONE_SHOT = 0,
  PYCOLL_CUDA_TWO_SHOT = 1,
  PYCOLL_CUDA_REDUCE_SCATTER = 2,
  PYCOLL_CUDA_ALL_GATHER = 3
};
/* Up to how many bytes to each peer an allreduce is best one-shot, and two-shot. */
enum { PYCOLL_CUDA_ONE_SHOT_BYTES = 32 << 10, PYCOLL_CUDA_TWO_SHOT_BYTES = 512 << 10 };

typedef struct pycoll_cuda_group pycoll_cuda_group;

typedef struct {
  char name[128];
  int32_t major, minor; /* compute capability */
  int32_t multiprocessors;
  int32_t reserved;
  uint64_t memory; /* bytes */
} pycoll_cuda_device;

/* The same on all ranks, but for rank and device. Zeros are replaced by defaults. */
typedef struct {
  int32_t rank, ranks, device;
  int32_t blocks;   /* the most of a kernel; ranks on one GPU share its multiprocessors */
  int32_t slots;    /* flags of a pair of ranks at a block */
  int32_t packets;  /* of a sender at a block */
  uint64_t staging; /* bytes of working memory */
} pycoll_cuda_options;

int pycoll_cuda_abi(void);
const char* pycoll_cuda_error(void);
int pycoll_cuda_device_count(int32_t* count);
int pycoll_cuda_device_info(int32_t device, pycoll_cuda_device* info);

/* A group is opened by every rank; the handles of all, in order of rank, are exchanged by the caller. */
int pycoll_cuda_open(const pycoll_cuda_options* options, pycoll_cuda_group** group);
size_t pycoll_cuda_handle_bytes(void);
int pycoll_cuda_handle(pycoll_cuda_group* group, void* handle);
int pycoll_cuda_connect(pycoll_cuda_group* group, const void* handles);
int pycoll_cuda_close(pycoll_cuda_group* group);
/* Ends every wait of running kernels, whose outputs then hold anything. From any thread. */
int pycoll_cuda_abort(pycoll_cuda_group* group);

/* Whether what is put on the stream (a cudaStream_t) becomes part of a graph. */
int pycoll_cuda_capturing(void* stream, int32_t* captures);
/* The number of the capture that it becomes part of; 0: none. */
int pycoll_cuda_capture(void* stream, uint64_t* capture);
/* Lets this thread ask for events also while another one captures a graph. */
int pycoll_cuda_relax_capture(void);

/* How ranks share memory: by CUDA IPC, which pycoll_cuda_open takes, or by address ranges as file descriptors
 * or fabric handles. pycoll_cuda_offers: the bits of what a device offers. All ranks open with one kind. */
enum { PYCOLL_CUDA_MEMORY_IPC = 0, PYCOLL_CUDA_MEMORY_DESCRIPTOR = 1, PYCOLL_CUDA_MEMORY_FABRIC = 2 };
enum { PYCOLL_CUDA_OFFERS_DESCRIPTORS = 1, PYCOLL_CUDA_OFFERS_FABRIC = 2, PYCOLL_CUDA_OFFERS_MULTICAST = 4 };
int pycoll_cuda_offers(int32_t device, uint32_t* offers);
int pycoll_cuda_open_memory(const pycoll_cuda_options* options, int32_t kind, pycoll_cuda_group** group);
int pycoll_cuda_memory_kind(pycoll_cuda_group* group, int32_t* kind);

/* Collectives through the NVLink switch (NVLS) need a multicast object. Each of the three is called by all
 * ranks before any calls the next; handles are exchanged as above, and only rank 0's says something. Where
 * one fails all ranks drop it. */
int pycoll_cuda_multicast_offer(pycoll_cuda_group* group, void* handle);
int pycoll_cuda_multicast_join(pycoll_cuda_group* group, const void* handles);
int pycoll_cuda_multicast_bind(pycoll_cuda_group* group);
int pycoll_cuda_multicast_drop(pycoll_cuda_group* group);
enum { PYCOLL_CUDA_NVLS_ALLREDUCE = 0, PYCOLL_CUDA_NVLS_REDUCE_SCATTER = 1, PYCOLL_CUDA_NVLS_ALL_GATHER = 2 };
int pycoll_cuda_nvls(pycoll_cuda_group* group, int32_t which, int32_t dtype, int32_t op, double factor,
                     const void* input, void* output, uint64_t count, void* stream);

/* The functions that torch.cuda.memory.CUDAPluggableAllocator takes: they give segments of the process's
 * pool. pool_alloc returns null where there is no memory. */
void* pycoll_cuda_pool_alloc(ptrdiff_t bytes, int device, void* stream);
void pycoll_cuda_pool_free(void* memory, ptrdiff_t bytes, int device, void* stream);
/* Lets peers know this rank's segments that they do not know yet. Each of the three by all ranks, before any
 * calls the next; batches are exchanged as handles are. `more`: to be repeated, since not all went. Schedules
 * then work in a registered or pooled output without staging, where all ranks have one. */
size_t pycoll_cuda_pool_batch_bytes(void);
int pycoll_cuda_pool_offer(pycoll_cuda_group* group, void* batch);
int pycoll_cuda_pool_connect(pycoll_cuda_group* group, const void* batches, int32_t* more);
int pycoll_cuda_pool_use(pycoll_cuda_group* group);
/* Whether a buffer lies in a segment that peers know. */
int pycoll_cuda_pool_finds(pycoll_cuda_group* group, const void* memory, size_t bytes, int32_t* found);

/* A buffer that peers may read and write: schedules then work in it, without staging. All ranks register a
 * buffer each, in the same order, and exchange handles as above. */
int pycoll_cuda_register(pycoll_cuda_group* group, void* buffer, size_t bytes, void* handle);
int pycoll_cuda_register_connect(pycoll_cuda_group* group, const void* handles, int32_t* registration);
int pycoll_cuda_unregister(pycoll_cuda_group* group, int32_t registration);

/* A verified schedule; transfers are rows (round, src, dst, piece, reduce). With finds_late its last rank is
 * whichever rank comes last at run time (allreduce only). */
int pycoll_cuda_plan(pycoll_cuda_group* group, int32_t kind, int32_t pieces, int32_t root,
                     const int32_t* transfers, size_t count, int32_t finds_late, int32_t* plan);
/* Puts the collective on the stream (a cudaStream_t). registration: of the output, or -1. */
int pycoll_cuda_run(pycoll_cuda_group* group, int32_t plan, int32_t dtype, int32_t op, double factor,
                    const void* input, void* output, uint64_t count, int32_t registration, void* stream);
/* The kernels for small buffers. `count` as in the collective's call; _limit is the greatest. */
int pycoll_cuda_packets(pycoll_cuda_group* group, int32_t which, int32_t dtype, int32_t op, double factor,
                        const void* input, void* output, uint64_t count, void* stream);
int pycoll_cuda_packets_limit(pycoll_cuda_group* group, int32_t which, int32_t dtype, uint64_t* count);

/* Messages between ranks. The memory for them is opened by all ranks after pycoll_cuda_connect, its handles
 * are exchanged as above. Messages from one rank to another are matched in the order of calls, in which they
 * must be on streams as well; length and tag must be the same at both sides. Those of one call go at once: no
 * order among them makes ranks wait for each other in a circle. */
typedef struct {
  void* data;
  uint64_t bytes;
  uint64_t tag;
  int32_t peer;
  int32_t sends; /* 0: it is received */
} pycoll_cuda_message;
enum { PYCOLL_CUDA_MOST_MESSAGES = 64 }; /* of a call */
int pycoll_cuda_messages_open(pycoll_cuda_group* group, void* handle);
int pycoll_cuda_messages_connect(pycoll_cuda_group* group, const void* handles);
int pycoll_cuda_messages(pycoll_cuda_group* group, const pycoll_cuda_message* messages, int32_t count,
                         void* stream);
/* What was wrong with a message, which ended its kernel and no other; an empty text where nothing was. From
 * any thread. */
int pycoll_cuda_messages_complaint(pycoll_cuda_group* group, char* text, size_t bytes);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
