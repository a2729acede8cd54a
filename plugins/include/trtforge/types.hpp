//! \file types.hpp
//! \brief Storage types of tensors, and the plain structs that the dispatcher hands to the kernels of one ISA.
//!
//! Nothing here has an inline function: every translation unit sees the same bytes, so units compiled for
//! different instruction sets can never be merged by the linker into one that some CPU cannot run.
#ifndef TRTFORGE_TYPES_HPP
#define TRTFORGE_TYPES_HPP

#include "trtforge/host_abi.h"

#include <cstddef>
#include <cstdint>

namespace trtforge
{

struct Bf16
{
    uint16_t bits;
};

struct Fp16
{
    uint16_t bits;
};

struct E4m3
{
    uint8_t bits;
};

//! Keys per softmax step. Tiles begin at absolute positions 0, 64, 128, …: part of what makes a row's bits depend
//! on its own context only.
constexpr int kTILE = 64;
//! Keys per partial result. Also at absolute positions, whether or not the partials are computed in parallel.
constexpr int kCHUNK = 512;
//! Query rows (tokens x heads of a group) that share one pass over the keys.
constexpr int kROWS = 48;
//! The smallest block size bounds the pieces of a tile.
constexpr int kSEGMENTS = kTILE / 16;

//! One unit of attention work: some query tokens of one request and one kv head over a range of keys.
struct AttentionTask
{
    int32_t request;
    int32_t kvHead;
    int32_t tokenBegin; //!< in the request's own new tokens
    int32_t tokenCount;
    int32_t chunkBegin; //!< chunks of kCHUNK keys
    int32_t chunkEnd;
    int64_t partial; //!< first float of this task's partial result; -1: the task finishes its rows itself
};

//! Rows whose partial results are merged, in chunk order, after all tasks are done.
struct AttentionMerge
{
    int32_t request;
    int32_t kvHead;
    int32_t tokenBegin;
    int32_t tokenCount;
    int32_t chunks;
    int64_t partial;
};

//! What every task of a call shares.
struct AttentionCall
{
    trtforge_paged_attention_args const* args;
    float* partials;
    int32_t group;      //!< H / K
    int32_t paddedHead; //!< E rounded up to 16
    int32_t maxRows;    //!< rows of the largest task
};

//! Outputs of a panel of packed INT4 weights.
constexpr int kINT4_PANEL = 16;

//! The kernels of one instruction set. All are noexcept in effect: they neither allocate nor throw.
struct KernelTable
{
    char const* name;
    int lanes;
    //! Bytes of scratch one thread needs for a task.
    size_t (*attentionScratch)(AttentionCall const&);
    //! Floats of one partial result with this many rows.
    int64_t (*partialFloats)(AttentionCall const&, int32_t rows);
    //! Writes keys and values of tokens [begin, end) into the pool.
    void (*attentionWrite)(AttentionCall const&, int64_t begin, int64_t end);
    void (*attentionTask)(AttentionCall const&, AttentionTask const&, void* scratch);
    void (*attentionMerge)(AttentionCall const&, AttentionMerge const&, void* scratch);
    void (*rmsNorm)(trtforge_rms_norm_args const&, int64_t begin, int64_t end);
    void (*rope)(trtforge_rope_args const&, int64_t begin, int64_t end);
    void (*siluMul)(trtforge_silu_mul_args const&, int64_t begin, int64_t end);
    void (*fp8FakeQuant)(trtforge_fp8_fake_quant_args const&, int64_t begin, int64_t end); //!< elements, not rows
    void (*nvfp4FakeQuant)(trtforge_nvfp4_fake_quant_args const&, int64_t begin, int64_t end);
    void (*embedding)(trtforge_embedding_args const&, int64_t begin, int64_t end);
    void (*argmaxLogsumexp)(trtforge_argmax_logsumexp_args const&, int64_t begin, int64_t end);
    bool int4Pairs;                                 //!< int4Linear takes bfloat16 inputs; all take float32
    int64_t (*int4Scratch)(trtforge_int4_linear_args const&); //!< floats a thread needs
    void (*int4Widen)(trtforge_int4_linear_args const&, float* out, int64_t begin, int64_t end);
    void (*int4Linear)(trtforge_int4_linear_args const&, int64_t begin, int64_t end, float* scratch); //!< panels
};

KernelTable const& plainKernels();
KernelTable const& avx2Kernels();
KernelTable const& avx512Kernels();
KernelTable const& avx512VbmiKernels();
KernelTable const& avx512Bf16Kernels();
KernelTable const& wideKernels();

} // namespace trtforge

#endif // TRTFORGE_TYPES_HPP
