//! \file host_abi.h
//! \brief C ABI of the host op library (`libtrtforge_host.so`), version TRTFORGE_HOST_ABI.
//!
//! Rules that every entry point keeps:
//! - it returns TRTFORGE_OK or an error code and never throws; the message of the calling thread's last error is
//!   read with trtforge_last_error();
//! - arguments are checked before anything is written, so a refused call has no effect;
//! - pointers are borrowed for the length of the call; strides are in elements;
//! - a struct starts with its own size, so that a caller built against another layout is refused.
#ifndef TRTFORGE_HOST_ABI_H
#define TRTFORGE_HOST_ABI_H

#include "trtforge/op_args.h"

#if defined(TRTFORGE_BUILDING)
#define TRTFORGE_API __attribute__((visibility("default")))
#else
#define TRTFORGE_API
#endif

#ifdef __cplusplus
extern "C"
{
#endif

enum trtforge_status
{
    TRTFORGE_OK = 0,
    TRTFORGE_NULL_POINTER = 1,
    TRTFORGE_BAD_DTYPE = 2,
    TRTFORGE_BAD_SHAPE = 3,
    TRTFORGE_BAD_HEAD_SIZE = 4,
    TRTFORGE_BAD_BLOCK_SIZE = 5,
    TRTFORGE_BAD_HEADS = 6,
    TRTFORGE_BAD_QUERY_START = 7,
    TRTFORGE_BAD_SEQUENCE_LENGTH = 8,
    TRTFORGE_BAD_BLOCK_TABLE = 9,
    TRTFORGE_BAD_STRIDE = 10,
    TRTFORGE_BAD_VALUE = 11,
    TRTFORGE_BAD_TREE_MASK = 12,
    TRTFORGE_OUT_OF_MEMORY = 13,
    TRTFORGE_BAD_ISA = 14,
    TRTFORGE_BAD_STRUCT = 15,
    TRTFORGE_BAD_INDEX = 16,
    TRTFORGE_DEVICE_ERROR = 17
};

// --- the library itself -------------------------------------------------------------------------------------

TRTFORGE_API int trtforge_host_abi(void);
TRTFORGE_API char const* trtforge_last_error(void);
//! JSON: abi, isa, isas_compiled, isas_available, compiler, source_hash, openmp, threads.
TRTFORGE_API char const* trtforge_host_info(void);
//! Name of the instruction set in use ("plain", "avx2", "avx512"); null (and an error) when the choice is refused.
TRTFORGE_API char const* trtforge_host_isa(void);
//! Chooses an instruction set by name; null or "" returns to TRTFORGE_HOST_ISA or the best that the CPU has.
TRTFORGE_API int trtforge_host_select_isa(char const* name);
//! Threads per call: 0 follows OpenMP (and therefore torch.set_num_threads).
TRTFORGE_API int trtforge_host_set_threads(int threads);
//! Ends the process at once (exit status 1) when its parent is no longer the process `parent`; returns only to refuse.
//! Called by a thread of its own. It asks every `milliseconds` and needs nothing that the process may have locked, such
//! as the interpreter.
TRTFORGE_API int trtforge_host_leave_with_parent(int parent, int milliseconds);

// --- the ops: one argument struct each, see op_args.h -------------------------------------------------------

TRTFORGE_API int trtforge_paged_attention(struct trtforge_paged_attention_args const* args);
TRTFORGE_API int trtforge_eagle_tree_build(struct trtforge_eagle_tree_build_args const* args);
TRTFORGE_API int trtforge_eagle_accept(struct trtforge_eagle_accept_args const* args);
TRTFORGE_API int trtforge_kv_move(struct trtforge_kv_move_args const* args);
TRTFORGE_API int trtforge_copy_blocks(struct trtforge_copy_blocks_args const* args);
TRTFORGE_API int trtforge_rms_norm(struct trtforge_rms_norm_args const* args);
TRTFORGE_API int trtforge_rope(struct trtforge_rope_args const* args);
TRTFORGE_API int trtforge_silu_mul(struct trtforge_silu_mul_args const* args);
TRTFORGE_API int trtforge_fp8_fake_quant(struct trtforge_fp8_fake_quant_args const* args);
TRTFORGE_API int trtforge_nvfp4_fake_quant(struct trtforge_nvfp4_fake_quant_args const* args);
TRTFORGE_API int trtforge_embedding(struct trtforge_embedding_args const* args);
TRTFORGE_API int trtforge_argmax_logsumexp(struct trtforge_argmax_logsumexp_args const* args);
TRTFORGE_API int trtforge_int4_linear(struct trtforge_int4_linear_args const* args);

#ifdef __cplusplus
}
#endif

#endif // TRTFORGE_HOST_ABI_H
