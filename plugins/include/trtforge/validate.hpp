//! \file validate.hpp
//! \brief Rules of trtforge::PagedAttention v1 and of the helpers: every argument is checked before a byte is written.
//!
//! Framework-free: the same rules serve any wrapper around the op. A broken rule throws Refusal; the C ABI turns it
//! into a code and a message with the offending numbers.
#ifndef TRTFORGE_VALIDATE_HPP
#define TRTFORGE_VALIDATE_HPP

#include "trtforge/host_abi.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <string>

namespace trtforge
{

struct Refusal
{
    int code;
    std::string message;
};

__attribute__((format(printf, 3, 4))) inline void require(bool holds, int code, char const* format, ...)
{
    if (holds)
    {
        return;
    }
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    throw Refusal{code, text};
}

//! A caller that was built against another layout of an argument struct.
template <typename Args>
void checkStruct(Args const* args)
{
    require(args != nullptr, TRTFORGE_NULL_POINTER, "args is null");
    require(args->struct_size == sizeof(Args), TRTFORGE_BAD_STRUCT, "struct_size is %llu, this library has %zu",
        static_cast<unsigned long long>(args->struct_size), sizeof(Args));
}

inline void requireActivation(int32_t dtype, char const* what)
{
    require(dtype == TRTFORGE_FLOAT32 || dtype == TRTFORGE_BFLOAT16 || dtype == TRTFORGE_FLOAT16, TRTFORGE_BAD_DTYPE,
        "%s must be float32 (0), bfloat16 (1) or float16 (2), got %d", what, dtype);
}

inline void requireRow(int64_t stride, int64_t width, int64_t rows, char const* what)
{
    require(stride >= width || rows <= 1, TRTFORGE_BAD_STRIDE, "%s: row stride %lld is less than the row width %lld",
        what, static_cast<long long>(stride), static_cast<long long>(width));
}

//! Shapes and scalars only: what can be known without reading index tensors.
inline void checkAttentionShapes(trtforge_paged_attention_args const& a)
{
    require(a.num_tokens >= 0 && a.num_tokens <= 0x7fffffff, TRTFORGE_BAD_SHAPE, "num_tokens is %lld",
        static_cast<long long>(a.num_tokens));
    require(a.num_requests >= 0, TRTFORGE_BAD_SHAPE, "num_requests is %d", a.num_requests);
    require(a.max_blocks >= 0 && a.num_blocks >= 0, TRTFORGE_BAD_SHAPE, "max_blocks is %d, num_blocks is %d",
        a.max_blocks, a.num_blocks);
    requireActivation(a.activation_dtype, "activation dtype");
    require(a.pool_dtype >= TRTFORGE_FLOAT32 && a.pool_dtype <= TRTFORGE_FLOAT8_E4M3, TRTFORGE_BAD_DTYPE,
        "pool dtype must be float32 (0), bfloat16 (1), float16 (2) or float8_e4m3 (3), got %d", a.pool_dtype);
    require(a.head_size >= 64 && a.head_size <= 256 && a.head_size % 8 == 0, TRTFORGE_BAD_HEAD_SIZE,
        "head size must be a multiple of 8 from 64 to 256, got %d", a.head_size);
    require(a.block_size == 16 || a.block_size == 32 || a.block_size == 64 || a.block_size == 128,
        TRTFORGE_BAD_BLOCK_SIZE, "block size must be 16, 32, 64 or 128, got %d", a.block_size);
    require(a.num_heads > 0 && a.num_kv_heads > 0 && a.num_heads % a.num_kv_heads == 0 && a.num_heads <= 65536,
        TRTFORGE_BAD_HEADS, "%d heads cannot share %d kv heads evenly", a.num_heads, a.num_kv_heads);
    require(std::isfinite(a.scale) && a.scale > 0.0F, TRTFORGE_BAD_VALUE, "scale must be finite and positive, got %g",
        static_cast<double>(a.scale));
    require(std::isfinite(a.soft_cap) && a.soft_cap >= 0.0F, TRTFORGE_BAD_VALUE,
        "soft_cap must be 0 (off) or positive, got %g", static_cast<double>(a.soft_cap));
    require(a.sliding_window >= 0, TRTFORGE_BAD_VALUE, "sliding_window must be 0 (off) or positive, got %d",
        a.sliding_window);
    bool const scaled = a.pool_dtype == TRTFORGE_FLOAT8_E4M3;
    bool const positive = std::isfinite(a.k_scale) && a.k_scale > 0.0F && std::isfinite(a.v_scale) && a.v_scale > 0.0F;
    require(positive && (scaled || (a.k_scale == 1.0F && a.v_scale == 1.0F)), TRTFORGE_BAD_VALUE,
        "k_scale %g and v_scale %g: must be finite and positive, and 1 unless the pool is float8_e4m3",
        static_cast<double>(a.k_scale), static_cast<double>(a.v_scale));
    int64_t const queryWidth = static_cast<int64_t>(a.num_heads) * a.head_size;
    int64_t const keyWidth = static_cast<int64_t>(a.num_kv_heads) * a.head_size;
    requireRow(a.query_stride, queryWidth, a.num_tokens, "query");
    requireRow(a.output_stride, queryWidth, a.num_tokens, "output");
    requireRow(a.key_stride, keyWidth, a.num_tokens, "key");
    requireRow(a.value_stride, keyWidth, a.num_tokens, "value");
    requireRow(a.block_table_stride, a.max_blocks, a.num_requests, "block_table");
    require(a.query_start != nullptr, TRTFORGE_NULL_POINTER, "query_start is null");
    bool const empty = a.num_tokens == 0;
    require(empty || (a.query != nullptr && a.key != nullptr && a.value != nullptr && a.output != nullptr),
        TRTFORGE_NULL_POINTER, "query, key, value or output is null with %lld tokens",
        static_cast<long long>(a.num_tokens));
    require(empty || (a.kv_pool != nullptr && a.block_table != nullptr), TRTFORGE_NULL_POINTER,
        "kv_pool or block_table is null");
    require(a.num_requests == 0 || a.sequence_lengths != nullptr, TRTFORGE_NULL_POINTER, "sequence_lengths is null");
    if (a.tree_mask != nullptr)
    {
        require(a.tree_mask_width > 0, TRTFORGE_BAD_TREE_MASK, "tree_mask width is %d", a.tree_mask_width);
        require(a.tree_mask_stride >= a.tree_mask_width, TRTFORGE_BAD_STRIDE,
            "tree_mask: row stride %lld is less than its width %d", static_cast<long long>(a.tree_mask_stride),
            a.tree_mask_width);
    }
}

//! A mask of one column stands for plain causality.
inline bool hasTreeMask(trtforge_paged_attention_args const& a)
{
    return a.tree_mask != nullptr && a.tree_mask_width > 1;
}

//! First position that any new token of a request may still look at (earlier blocks may have been given back).
inline int32_t firstVisible(trtforge_paged_attention_args const& a, int32_t base)
{
    return a.sliding_window > 0 && base - a.sliding_window + 1 > 0 ? base - a.sliding_window + 1 : 0;
}

//! The index tensors: ragged offsets, lengths, and every block table entry that the op will follow.
inline void checkAttentionIndices(trtforge_paged_attention_args const& a)
{
    require(a.query_start[0] == 0, TRTFORGE_BAD_QUERY_START, "query_start[0] must be 0, got %d", a.query_start[0]);
    for (int32_t b = 0; b < a.num_requests; ++b)
    {
        int32_t const begin = a.query_start[b];
        int32_t const end = a.query_start[b + 1];
        require(end >= begin && end <= a.num_tokens, TRTFORGE_BAD_QUERY_START,
            "query_start[%d] is %d after %d with %lld tokens: must not decrease or pass the end", b + 1, end, begin,
            static_cast<long long>(a.num_tokens));
        int32_t const length = a.sequence_lengths[b];
        if (begin == end)
        {
            continue; // nothing is read or written for a request without new tokens
        }
        int64_t const capacity = static_cast<int64_t>(a.max_blocks) * a.block_size;
        require(length >= end - begin && length <= capacity, TRTFORGE_BAD_SEQUENCE_LENGTH,
            "sequence_lengths[%d] is %d: must be at least its %d new tokens and at most %d blocks x %d slots", b, length,
            end - begin, a.max_blocks, a.block_size);
        require(!hasTreeMask(a) || end - begin <= a.tree_mask_width, TRTFORGE_BAD_TREE_MASK,
            "request %d has %d new tokens but the tree mask is %d wide", b, end - begin, a.tree_mask_width);
        int32_t const* row = a.block_table + b * a.block_table_stride;
        int32_t const last = (length - 1) / a.block_size;
        for (int32_t i = firstVisible(a, length - (end - begin)) / a.block_size; i <= last; ++i)
        {
            require(row[i] >= 0 && row[i] < a.num_blocks, TRTFORGE_BAD_BLOCK_TABLE,
                "block_table[%d][%d] is %d, outside the pool of %d blocks (context of %d tokens)", b, i, row[i],
                a.num_blocks, length);
        }
    }
    require(a.query_start[a.num_requests] == a.num_tokens, TRTFORGE_BAD_QUERY_START,
        "query_start ends at %d but there are %lld tokens", a.query_start[a.num_requests],
        static_cast<long long>(a.num_tokens));
}

} // namespace trtforge

#endif // TRTFORGE_VALIDATE_HPP
