//! \file launchers.hpp
//! \brief The CUDA ops as plain C++: checks, workspace sizes and enqueue functions over the C ABI's structs.
//!
//! Contracts are in docs/ops.md. Rules that every function keeps:
//! - nothing throws, allocates device memory or synchronizes; an enqueue may be captured in a CUDA graph, and the
//!   graph may be replayed after the contents of the index tensors changed;
//! - all tensor pointers are device pointers; strides are in elements; dtypes are `trtforge_dtype` codes and status
//!   codes are `trtforge_status` codes of host_abi.h;
//! - fields and shapes are checked on the host before anything is launched. What only the device knows (offsets,
//!   lengths, block tables) is checked on the device when `status` is given: a refused call then writes nothing but
//!   `status`. Without `status`, indices that break the rules give wrong numbers, but no kernel leaves its tensors.
//!
//! No CUDA header is needed to include this file.
#ifndef TRTFORGE_CUDA_LAUNCHERS_HPP
#define TRTFORGE_CUDA_LAUNCHERS_HPP

#include "trtforge/host_abi.h"

#include <cstddef>
#include <cstdint>
#include <string>

struct CUstream_st;

namespace trtforge
{
namespace cuda
{

//! The same type as cudaStream_t.
using Stream = CUstream_st*;

//! Rises when a struct or function of this header changes meaning; stamped into engines beside the source hash.
constexpr int32_t kABI = TRTFORGE_CUDA_ABI;

int32_t abi() noexcept;
//! SHA-256 of the sources that this library was built from (64 hexadecimal digits).
char const* sourceHash() noexcept;
//! JSON: abi, source_hash, architectures, compiler, backend ("cuda" or "host shim").
char const* info() noexcept;

//! A trtforge_status and, when it is not TRTFORGE_OK, one sentence with the offending numbers.
struct Status
{
    int32_t code{TRTFORGE_OK};
    std::string message;

    bool ok() const noexcept
    {
        return code == TRTFORGE_OK;
    }
};

//! What the launchers need to know about the GPU; ask once and keep it.
struct Device
{
    int32_t ordinal{0};
    int32_t computeCapability{0};      //!< 80, 86, 89, 90, 100, 103, 120, 121
    int32_t multiprocessors{0};
    int32_t sharedBytesPerBlock{0};    //!< with opt-in
};

Status queryDevice(int32_t ordinal, Device& device) noexcept;

//! The most multiprocessors that a GPU of a compute capability has; 0 for one that has no kernels here.
//!
//! For what is sized on one GPU and used on another of the same architecture: a workspace sized for a smaller GPU
//! (or a slice of one) would be too short for the splits of a larger one.
int32_t mostMultiprocessors(int32_t computeCapability) noexcept;

//! Words of a device status tensor (int32): code, then up to five numbers of the message.
constexpr int32_t kSTATUS_WORDS = 8;

//! The status that the device left in `words` (copied to the host by the caller) of the op named.
Status describeStatus(char const* op, int32_t const words[kSTATUS_WORDS]) noexcept;

//! The arguments are those of the C ABI, with device pointers; attributes alone are enough where no tensor is needed.
using AttentionArgs = trtforge_paged_attention_args;
using TreeArgs = trtforge_eagle_tree_build_args;
using AcceptArgs = trtforge_eagle_accept_args;
using MoveArgs = trtforge_kv_move_args;
//! Stream, workspace, scales and status of a call.
using Call = trtforge_cuda_call;

// --- PagedAttention -----------------------------------------------------------------------------------------
// scale 0 stands for 1/sqrt(head_size); k_scale and v_scale are the call's. Tensors and rows start at multiples of 16
// bytes.

//! What is wrong whatever the tensors are.
Status checkAttentionFields(AttentionArgs const& args) noexcept;

//! Bytes that pagedAttention() uses for exactly these sizes (256-byte aligned base).
size_t attentionWorkspace(AttentionArgs const& args, Call const& call, Device const& device) noexcept;
//! Enough for attentionWorkspace() of all sizes whose tokens, requests and max_blocks are at most `limits`'.
size_t attentionWorkspaceBound(AttentionArgs const& limits, Call const& call, Device const& device) noexcept;

Status pagedAttention(AttentionArgs const& args, Call const& call, Device const& device) noexcept;

// --- the tree ops: they need no workspace -------------------------------------------------------------------

//! C: candidates that the state holds over all levels, top_k + (levels - 1) * expand * top_k.
int32_t treeCandidates(TreeArgs const& args) noexcept;
Status checkTreeFields(TreeArgs const& args) noexcept;
//! The rows of draft_logits of all requests are evenly spaced.
Status eagleTreeBuild(TreeArgs const& args, Call const& call) noexcept;

Status checkAcceptFields(AcceptArgs const& args) noexcept;
Status eagleAccept(AcceptArgs const& args, Call const& call) noexcept;

Status pagedKvMove(MoveArgs const& args, Call const& call) noexcept;

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_LAUNCHERS_HPP
