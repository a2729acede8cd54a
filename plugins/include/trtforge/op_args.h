//! \file op_args.h
//! \brief Arguments of the ops. See docs/ops.md for the contracts.
//!
//! Written by scripts/op_tables.py from trtforge/native/ops.py: change it there.
#ifndef TRTFORGE_OP_ARGS_H
#define TRTFORGE_OP_ARGS_H

#include <stdint.h>

#define TRTFORGE_HOST_ABI 4
#define TRTFORGE_CUDA_ABI 2

enum trtforge_dtype
{
    TRTFORGE_FLOAT32 = 0,
    TRTFORGE_BFLOAT16 = 1,
    TRTFORGE_FLOAT16 = 2,
    TRTFORGE_FLOAT8_E4M3 = 3,
};

//! \brief paged_attention: PagedAttention, version 2
struct trtforge_paged_attention_args
{
    uint64_t struct_size;
    void const* query; //!< [T, H*E]; a slice of a packed qkv will do
    void const* key; //!< [T, K*E]
    void const* value; //!< [T, K*E]
    void* kv_pool; //!< [N, 2, K, S, E]; second axis: 0 keys, 1 values
    void* output; //!< [T, H*E]; may be query; must not overlap key or value
    int32_t const* query_start; //!< [B+1]; starts at 0, never decreases, ends at T
    int32_t const* sequence_lengths; //!< [B]; context length, this step's tokens included
    //! [B, M]; pool block of positions S·i … S·i+S−1; entries that are not needed may be anything (−1)
    int32_t const* block_table;
    //! [T, W]; null: plain causality; W at least the most new tokens of a request, or 1: plain causality
    uint8_t const* tree_mask;
    float const* sinks; //!< [H]; null: none; an extra logit in each head's softmax denominator
    int64_t query_stride;
    int64_t key_stride;
    int64_t value_stride;
    int64_t output_stride;
    int64_t block_table_stride;
    int64_t tree_mask_stride;
    int64_t num_tokens; //!< T
    int32_t num_requests; //!< B
    int32_t max_blocks; //!< M
    int32_t num_blocks; //!< N
    int32_t block_size; //!< S, 16, 32, 64 or 128
    int32_t tree_mask_width; //!< W
    int32_t activation_dtype; //!< dtype of A
    int32_t pool_dtype; //!< dtype of P
    int32_t num_heads; //!< H, a multiple of K
    int32_t num_kv_heads; //!< K
    int32_t head_size; //!< E, a multiple of 8
    float scale; //!< factor on q·k; > 0 (a plugin's and a graph's 0: 1/sqrt(E))
    int32_t sliding_window; //!< positions that a query sees, its own included; 0: all
    float soft_cap; //!< cap of the scores; 0: none
    float k_scale; //!< FP8 pools: stored = e4m3(x / scale); 1 for the others
    float v_scale; //!< as k_scale
};

//! \brief eagle_tree_build: EagleTreeBuild, version 1
struct trtforge_eagle_tree_build_args
{
    uint64_t struct_size;
    void const* draft_logits; //!< [B, R, V]; R = 1 at level 0, X after it; row r belongs to frontier[b, r]
    int32_t const* root_tokens; //!< [B]; the last accepted token: node 0
    int32_t const* draft_to_target; //!< [V]; null: ids are the target's; added to a draft token's id (EAGLE-3's d2t)
    int32_t const* static_parents; //!< [G]; null: a dynamic tree; a fixed tree: each node's parent
    int32_t const* static_ranks; //!< [G]; null: a dynamic tree; which of its parent's children a node is
    int32_t* candidate_tokens; //!< [B, C]
    int32_t* candidate_parents; //!< [B, C]; a candidate, −1 the root
    float* candidate_scores; //!< [B, C]
    int32_t* frontier; //!< [B, X]; the candidates that the next level expands, −1 none
    int32_t* tokens; //!< [B, G]
    int32_t* parents; //!< [B, G]; −1 for the root and for unused nodes
    int32_t* depths; //!< [B, G]
    float* scores; //!< [B, G]
    uint8_t* mask; //!< [B, G, G]; ancestor or self: PagedAttention's tree mask
    int32_t* counts; //!< [B]; nodes in use
    int64_t draft_logits_stride;
    int32_t requests; //!< B
    int32_t vocabulary; //!< V
    int32_t logits_dtype; //!< dtype of A
    int32_t top_k; //!< children drawn from each expanded node
    int32_t expand; //!< X
    int32_t levels; //!< depth of the tree
    int32_t total; //!< G
    int32_t level; //!< of this call, below levels
};

//! \brief eagle_accept: EagleAccept, version 1
struct trtforge_eagle_accept_args
{
    uint64_t struct_size;
    void const* target_logits; //!< [B*G, V]; one row a node
    int32_t const* tokens; //!< [B, G]; as EagleTreeBuild gives them
    int32_t const* parents; //!< [B, G]; before their children
    int32_t const* counts; //!< [B]; 1 to G
    float const* temperatures; //!< [B]; null: all greedy; 0 is greedy
    int64_t const* seeds; //!< [B]; null: no sampling
    int32_t const* root_positions; //!< [B]; null: no sampling; position of the root token in its sequence
    int32_t* path; //!< [B, G]; the accepted nodes from node 0 on, then −1
    int32_t* lengths; //!< [B]; nodes on the path: 1 to G
    int32_t* emitted; //!< [B, G]; the tokens of path[1:] and then the bonus token (so lengths tokens), then −1
    int32_t* bonus; //!< [B]
    int64_t target_logits_stride;
    int32_t requests; //!< B
    int32_t vocabulary; //!< V
    int32_t logits_dtype; //!< dtype of A
    int32_t total; //!< G
};

//! \brief kv_move: PagedKVMove, version 1
struct trtforge_kv_move_args
{
    uint64_t struct_size;
    int32_t const* block_table; //!< [B, M]
    int32_t const* base_positions; //!< [B]; position of tree node 0
    int32_t const* path; //!< [B, G]; as EagleAccept gives it: rising along a row
    int32_t const* lengths; //!< [B]; nodes on the path; 0 skips the request
    //! num_pools pools [N, 2, K, S, E]; the array lies on the host; one a layer, of one shape and type
    void* const* pools;
    int64_t block_table_stride;
    int32_t num_pools;
    int32_t num_blocks; //!< N
    int32_t requests; //!< B
    int32_t max_blocks; //!< M
    int32_t path_width; //!< G
    int32_t block_size; //!< S, 16, 32, 64 or 128
    int32_t pool_dtype; //!< dtype of P
    int32_t num_kv_heads; //!< K
    int32_t head_size; //!< E, a multiple of 8
};

//! \brief copy_blocks: whole pool blocks, pair after pair: destination = source
struct trtforge_copy_blocks_args
{
    uint64_t struct_size;
    uint8_t* kv_pool; //!< [bytes]; N blocks of any type
    int64_t const* pairs; //!< [P, 2]; (source, destination)
    int64_t block_bytes;
    int64_t num_blocks; //!< N
    int64_t count; //!< P
};

//! \brief rms_norm: residual += x when there is one (rounded to its type), then out = rms(that) · (weight +
//! weight_offset)
struct trtforge_rms_norm_args
{
    uint64_t struct_size;
    void const* x; //!< [T, D]
    void* residual; //!< [T, D]; null: x itself is normed
    void const* weight; //!< [D]
    void* out; //!< [T, D]; may be x
    int64_t x_stride;
    int64_t residual_stride;
    int64_t out_stride;
    int64_t rows; //!< T
    int64_t width; //!< D
    int32_t dtype; //!< dtype of A
    int32_t weight_dtype; //!< dtype of W
    float eps; //!< >= 0
    float weight_offset;
};

//! \brief rope: half-rotation RoPE in place
struct trtforge_rope_args
{
    uint64_t struct_size;
    void* query; //!< [T, H*E]
    void* key; //!< [T, K*E]
    float const* cosine; //!< [T, rotary/2]
    float const* sine; //!< [T, rotary/2]
    int64_t query_stride;
    int64_t key_stride;
    int64_t tokens; //!< T
    int32_t rotary; //!< the part of a head that is rotated, even
    int32_t dtype; //!< dtype of A
    int32_t num_heads; //!< H, a multiple of K
    int32_t num_kv_heads; //!< K
    int32_t head_size; //!< E, a multiple of 8
};

//! \brief silu_mul: out[t, f] = silu(x[t, f]) · x[t, F + f]
struct trtforge_silu_mul_args
{
    uint64_t struct_size;
    void const* x; //!< [T, 2*F]; gate | up
    void* out; //!< [T, F]
    int64_t x_stride;
    int64_t out_stride;
    int64_t rows; //!< T
    int64_t width; //!< F
    int32_t dtype; //!< dtype of A
};

//! \brief fp8_fake_quant: out = e4m3(x / scale), saturating, times scale when dequantize
struct trtforge_fp8_fake_quant_args
{
    uint64_t struct_size;
    void const* x; //!< [D]
    void* out; //!< [D]; may be x
    int64_t count; //!< D
    int32_t dtype; //!< dtype of A
    int32_t dequantize;
    float scale;
};

//! \brief nvfp4_fake_quant: dynamic NVFP4 fake quantization along rows in blocks of 16; scale is the tensor's amax / (6
//! · 448)
struct trtforge_nvfp4_fake_quant_args
{
    uint64_t struct_size;
    void const* x; //!< [T, D]
    void* out; //!< [T, D]; may be x
    int64_t x_stride;
    int64_t out_stride;
    int64_t rows; //!< T
    int64_t width; //!< D
    int32_t dtype; //!< dtype of A
    float scale;
};

//! \brief embedding: out[t] = table[ids[t]], converted
struct trtforge_embedding_args
{
    uint64_t struct_size;
    void const* table; //!< [V, D]
    int64_t const* ids; //!< [T]
    void* out; //!< [T, D]
    int64_t out_stride;
    int64_t vocabulary; //!< V
    int64_t tokens; //!< T
    int64_t width; //!< D
    int32_t table_dtype; //!< dtype of W
    int32_t dtype; //!< dtype of A
};

//! \brief argmax_logsumexp: of each row the index of the first maximum, its value, and log Σ exp
struct trtforge_argmax_logsumexp_args
{
    uint64_t struct_size;
    float const* logits; //!< [L, V]
    int64_t* index; //!< [L]; null: not wanted
    float* maximum; //!< [L]; null: not wanted
    float* logsumexp; //!< [L]; null: not wanted
    int64_t logits_stride;
    int64_t rows; //!< L
    int64_t width; //!< V
};

//! \brief int4_linear: out = x Wᵀ + bias with W[n, k] = scales[n, k / group] · q[n, k], q in −8 … 7; a row's bits
//! depend on it alone
struct trtforge_int4_linear_args
{
    uint64_t struct_size;
    void const* x; //!< [T, inputs]
    uint32_t const* weights; //!< [panels, inputs/8, 16]; panels of 16 outputs (int4_kernels.hpp says how)
    float const* scales; //!< [panels, inputs/group, 16]
    float const* bias; //!< [outputs]; null: none
    void* out; //!< [T, outputs]
    int64_t x_stride;
    int64_t out_stride;
    int64_t rows; //!< T
    int64_t outputs;
    int64_t inputs;
    int64_t group; //!< a multiple of 8 that divides inputs
    int32_t x_dtype; //!< dtype of A
    int32_t out_dtype; //!< dtype of W
};

//! \brief What only a GPU needs beside an op's arguments.
struct trtforge_cuda_call
{
    uint64_t struct_size;
    void* stream; //!< cudaStream_t; null is the default stream
    void* workspace; //!< device memory, 256-byte aligned (PagedAttention only)
    float const* k_scale; //!< null (1), or one float on the device; the op's own k_scale is not read
    float const* v_scale;
    int32_t* status; //!< null (indices are trusted), or eight int32 on the device (checked mode)
    int64_t workspace_bytes;
    int32_t max_new_tokens; //!< 0: unknown
    int32_t device; //!< ordinal
    int32_t multiprocessors; //!< 0: ask the device; else plan as if it had so many
};

#endif // TRTFORGE_OP_ARGS_H
