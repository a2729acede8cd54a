//! \file cuda_abi.h
//! \brief C ABI of the CUDA op library (`libtrtforge_cuda.so`) and of its twin under the host shim.
//!
//! The argument structs are the host library's (op_args.h) with device pointers; `trtforge_cuda_call` carries what
//! only a GPU needs. Status codes are trtforge_status; messages are read with trtforge_cuda_last_error().
#ifndef TRTFORGE_CUDA_ABI_H
#define TRTFORGE_CUDA_ABI_H

#include "trtforge/host_abi.h"

#ifdef __cplusplus
extern "C"
{
#endif

TRTFORGE_API int trtforge_cuda_abi(void);
TRTFORGE_API char const* trtforge_cuda_info(void);
TRTFORGE_API char const* trtforge_cuda_last_error(void);

//! Bytes of workspace that the call needs.
TRTFORGE_API int trtforge_cuda_attention_workspace(
    struct trtforge_paged_attention_args const* args, struct trtforge_cuda_call const* call, uint64_t* bytes);
//! Enough bytes for every call whose tokens, requests and blocks a request are at most those given.
TRTFORGE_API int trtforge_cuda_attention_workspace_bound(
    struct trtforge_paged_attention_args const* args, struct trtforge_cuda_call const* call, uint64_t* bytes);
TRTFORGE_API int trtforge_cuda_paged_attention(
    struct trtforge_paged_attention_args const* args, struct trtforge_cuda_call const* call);
TRTFORGE_API int trtforge_cuda_eagle_tree_build(
    struct trtforge_eagle_tree_build_args const* args, struct trtforge_cuda_call const* call);
TRTFORGE_API int trtforge_cuda_eagle_accept(
    struct trtforge_eagle_accept_args const* args, struct trtforge_cuda_call const* call);
TRTFORGE_API int trtforge_cuda_kv_move(
    struct trtforge_kv_move_args const* args, struct trtforge_cuda_call const* call);

//! The status that the device left in words (copied to the host): a trtforge_status, with a message when not OK.
TRTFORGE_API int trtforge_cuda_describe(char const* op, int32_t const* words);
//! Host shim only: runs the threads of a block in falling order. A GPU library refuses it.
TRTFORGE_API int trtforge_cuda_shim_order(int descending);
//! Host shim only: "x,y,z,threads;" of each kernel started since the last call. "" of a GPU library.
TRTFORGE_API char const* trtforge_cuda_shim_launches(void);

#ifdef __cplusplus
}
#endif

#endif // TRTFORGE_CUDA_ABI_H
