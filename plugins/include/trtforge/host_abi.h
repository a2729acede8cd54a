//! \file host_abi.h
//! \brief C ABI of the host op library (`libtrtforge_host.so`), version TRTFORGE_HOST_ABI.
//!
//! Rules that every entry point keeps:
//! - it returns TRTFORGE_OK or an error code and never throws; the message of the calling thread's last error is
//!   read with trtforge_last_error();
//! - arguments are checked before anything is written, so a refused call has no effect;
//! - pointers are borrowed for the length of the call; strides are in elements;
//! - a struct starts with its own size, so that a caller built against another layout is refused.
//!
//! Shape letters: T tokens in a step, B requests, H heads, K kv heads, E head size, N pool blocks, S slots in a
//! block, M blocks a request, D model width, F feed-forward width, V vocabulary, L rows of logits, G nodes of a draft
//! tree with its root, C candidates, X expanded nodes of a level, R rows of draft logits a request (1 at level 0, then X).
#ifndef TRTFORGE_HOST_ABI_H
#define TRTFORGE_HOST_ABI_H

#include <stdint.h>

#define TRTFORGE_HOST_ABI 3

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

enum trtforge_dtype
{
    TRTFORGE_FLOAT32 = 0,
    TRTFORGE_BFLOAT16 = 1,
    TRTFORGE_FLOAT16 = 2,
    TRTFORGE_FLOAT8_E4M3 = 3
};

//! \brief Arguments of trtforge::PagedAttention, version 1. See docs/ops.md for the contract.
struct trtforge_paged_attention_args
{
    uint64_t struct_size; //!< sizeof(struct trtforge_paged_attention_args)
    void const* query;    //!< [T, H*E], activation dtype, row stride query_stride
    void const* key;      //!< [T, K*E]
    void const* value;    //!< [T, K*E]
    void* kv_pool;        //!< [N, 2, K, S, E], pool dtype, contiguous; written in place
    void* output;         //!< [T, H*E], activation dtype; must not overlap key or value; may equal query
    int32_t const* query_start;      //!< [B+1]
    int32_t const* sequence_lengths; //!< [B]
    int32_t const* block_table;      //!< [B, M], row stride block_table_stride
    uint8_t const* tree_mask;        //!< null, or [T, W] with row stride tree_mask_stride; W 1: plain causality
    float const* sinks;              //!< null, or [H]: a logit added to every softmax denominator
    int64_t query_stride;
    int64_t key_stride;
    int64_t value_stride;
    int64_t output_stride;
    int64_t block_table_stride;
    int64_t tree_mask_stride;
    int64_t num_tokens;     //!< T
    int32_t num_requests;   //!< B
    int32_t max_blocks;     //!< M
    int32_t num_blocks;     //!< N
    int32_t block_size;     //!< S: 16, 32, 64 or 128
    int32_t num_heads;      //!< H, a multiple of K
    int32_t num_kv_heads;   //!< K
    int32_t head_size;      //!< E: 64 to 256, a multiple of 8
    int32_t activation_dtype;
    int32_t pool_dtype;
    int32_t sliding_window; //!< 0: off
    int32_t tree_mask_width; //!< W
    float scale;            //!< multiplies q.k; > 0
    float soft_cap;         //!< 0: off
    float k_scale;          //!< FP8 pools: stored = e4m3(x / scale); 1 for the others
    float v_scale;
};

//! \brief Arguments of trtforge::EagleTreeBuild, version 1: one level of a draft tree. See docs/ops.md.
struct trtforge_eagle_tree_args
{
    uint64_t struct_size;
    void const* draft_logits;      //!< [B, R, V], logits dtype, rows row_stride apart
    int32_t const* root_tokens;    //!< [B]
    int32_t const* draft_to_target; //!< null, or [V]: added to a draft token's id
    int32_t const* static_parents; //!< null (dynamic), or [G]
    int32_t const* static_ranks;   //!< null, or [G]
    int32_t* candidate_tokens;     //!< [B, C] state
    int32_t* candidate_parents;    //!< [B, C] state; -1: the root
    float* candidate_scores;       //!< [B, C] state
    int32_t* frontier;             //!< [B, X] state; -1: none
    int32_t* tokens;               //!< [B, G]
    int32_t* parents;              //!< [B, G]
    int32_t* depths;               //!< [B, G]
    float* scores;                 //!< [B, G]
    uint8_t* mask;                 //!< [B, G, G]
    int32_t* counts;               //!< [B]
    int64_t row_stride;
    int32_t level;
    int32_t requests;   //!< B
    int32_t vocabulary; //!< V
    int32_t top_k;
    int32_t expand; //!< X
    int32_t levels;
    int32_t total; //!< G
    int32_t logits_dtype;
};

//! \brief Arguments of trtforge::EagleAccept, version 1. See docs/ops.md.
struct trtforge_eagle_accept_args
{
    uint64_t struct_size;
    void const* target_logits;      //!< [B*G, V], logits dtype, rows row_stride apart
    int32_t const* tokens;          //!< [B, G]
    int32_t const* parents;         //!< [B, G]
    int32_t const* counts;          //!< [B]
    float const* temperatures;      //!< null (greedy), or [B]
    int64_t const* seeds;           //!< [B], with temperatures
    int32_t const* root_positions;  //!< [B], with temperatures
    int32_t* path;                  //!< [B, G]
    int32_t* lengths;               //!< [B]
    int32_t* emitted;               //!< [B, G]
    int32_t* bonus;                 //!< [B]
    int64_t row_stride;
    int32_t requests;   //!< B
    int32_t vocabulary; //!< V
    int32_t total;      //!< G
    int32_t logits_dtype;
};

//! \brief Arguments of trtforge::PagedKVMove, version 1. See docs/ops.md.
struct trtforge_kv_move_args
{
    uint64_t struct_size;
    void* const* pools;            //!< num_pools pools [N, 2, K, S, E]; the array itself lies on the host
    int32_t const* block_table;    //!< [B, M], row stride block_table_stride
    int32_t const* base_positions; //!< [B]: position of tree node 0
    int32_t const* path;           //!< [B, G]
    int32_t const* lengths;        //!< [B]
    int64_t block_table_stride;
    int32_t num_pools;
    int32_t num_blocks;   //!< N
    int32_t requests;     //!< B
    int32_t max_blocks;   //!< M
    int32_t path_width;   //!< G
    int32_t num_kv_heads; //!< K
    int32_t head_size;    //!< E
    int32_t block_size;   //!< S
    int32_t pool_dtype;
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

// --- attention ----------------------------------------------------------------------------------------------

TRTFORGE_API int trtforge_paged_attention(struct trtforge_paged_attention_args const* args);

//! Copies whole pool blocks, pair after pair: dst = src. pairs is [count, 2] (source, destination).
TRTFORGE_API int trtforge_copy_blocks(
    void* kv_pool, int64_t block_bytes, int32_t num_blocks, int64_t const* pairs, int64_t count);

// --- speculation --------------------------------------------------------------------------------------------

TRTFORGE_API int trtforge_eagle_tree_build(struct trtforge_eagle_tree_args const* args);
TRTFORGE_API int trtforge_eagle_accept(struct trtforge_eagle_accept_args const* args);
TRTFORGE_API int trtforge_kv_move(struct trtforge_kv_move_args const* args);

// --- fused elementwise helpers ------------------------------------------------------------------------------

//! out[t] = x[t] * rsqrt(mean(x[t]^2) + eps) * (weight + weight_offset), one rounding at the end.
TRTFORGE_API int trtforge_rms_norm(void const* x, int64_t x_stride, void const* weight, void* out, int64_t out_stride,
    int64_t rows, int64_t width, float eps, float weight_offset, int32_t dtype, int32_t weight_dtype);

//! residual[t] += x[t] (rounded to dtype), then out[t] = rms_norm(residual[t]).
TRTFORGE_API int trtforge_add_rms_norm(void const* x, int64_t x_stride, void* residual, int64_t residual_stride,
    void const* weight, void* out, int64_t out_stride, int64_t rows, int64_t width, float eps, float weight_offset,
    int32_t dtype, int32_t weight_dtype);

//! Half-rotation RoPE in place on query [T, H, E] and key [T, K, E]; cosine and sine are [T, rotary/2] float32.
TRTFORGE_API int trtforge_rope(void* query, int64_t query_stride, void* key, int64_t key_stride, float const* cosine,
    float const* sine, int64_t tokens, int32_t num_heads, int32_t num_kv_heads, int32_t head_size, int32_t rotary,
    int32_t dtype);

//! out[t, f] = silu(x[t, f]) * x[t, F + f].
TRTFORGE_API int trtforge_silu_mul(
    void const* x, int64_t x_stride, void* out, int64_t out_stride, int64_t rows, int64_t width, int32_t dtype);

//! out = e4m3(x / scale) [* scale when dequantize], as values of dtype; out may equal x.
TRTFORGE_API int trtforge_fp8_fake_quant(
    void const* x, void* out, int64_t count, float scale, int32_t dequantize, int32_t dtype);

//! Dynamic NVFP4 fake quantization along rows in blocks of 16; scale is the tensor's amax / (6 * 448).
TRTFORGE_API int trtforge_nvfp4_fake_quant(void const* x, int64_t x_stride, void* out, int64_t out_stride, int64_t rows,
    int64_t width, float scale, int32_t dtype);

//! out[t] = table[ids[t]], converted from table_dtype to dtype.
TRTFORGE_API int trtforge_embedding(void const* table, int64_t vocabulary, int64_t width, int64_t const* ids, int64_t tokens,
    void* out, int64_t out_stride, int32_t table_dtype, int32_t dtype);

//! Per row of float32 logits: index of the first maximum, its value and log(sum(exp(row))); outputs may be null.
TRTFORGE_API int trtforge_argmax_logsumexp(float const* logits, int64_t stride, int64_t rows, int64_t width, int64_t* index,
    float* maximum, float* logsumexp);

// --- linears ------------------------------------------------------------------------------------------------

//! out [rows, outputs] = x [rows, inputs] W^T + bias, W[n, k] = scales[n, k / group] * q[n, k] with q in -8 … 7.
//! A row's bits depend on that row alone. weights and scales lie in panels of 16 outputs (int4_kernels.hpp says how);
//! bias is float32 or null; sums are float32.
TRTFORGE_API int trtforge_int4_linear(void const* x, int64_t x_stride, uint32_t const* weights, float const* scales,
    float const* bias, void* out, int64_t out_stride, int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
    int32_t x_dtype, int32_t out_dtype);

#ifdef __cplusplus
}
#endif

#endif // TRTFORGE_HOST_ABI_H
