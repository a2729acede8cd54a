//! \file attention_kernels.hpp
//! \brief PagedAttention for one instruction set: flash-style online softmax over the blocks of a request.
//!
//! What makes a row's bits depend only on its own query, position and visible context (not on the batch, on how
//! a prompt was cut into steps, on the block size or on the threads):
//! - a score is accumulated over the head in lane order and reduced by reduce4, whatever the row tile;
//! - softmax steps take 64 keys from absolute positions, partial results 512 keys, merged in order even when one
//!   task computes all of them;
//! - a key that a row may not see has weight exactly zero, and adding zero times a finite value changes nothing.
//!
//! Scores are kept in the base-2 domain: queries are multiplied by scale * log2(e) once.
#ifndef TRTFORGE_ATTENTION_KERNELS_HPP
#define TRTFORGE_ATTENTION_KERNELS_HPP

#include "trtforge/attention_rows.hpp"

namespace trtforge
{
namespace TRTFORGE_ISA_NAMESPACE
{

//! One tile for R consecutive rows.
template <int R, typename T>
static void attendRows(
    Rows const& rows, int32_t r, int32_t position, Tile<T> const& tile, Tile<T> const* next, float capped)
{
    Scratch const& s = rows.scratch;
    int32_t low = s.low[r];
    int32_t high = s.high[r];
    for (int i = 1; i < R; ++i)
    {
        low = smaller(low, s.low[r + i]);
        high = larger(high, s.high[r + i]);
    }
    int32_t const end = smaller(high - position, kTILE);
    if (end <= 0 || low >= position + kTILE)
    {
        return;
    }
    int64_t const at = static_cast<int64_t>(r) * rows.padded;
    scoreRows<R>(s.query + at, rows.padded, tile, next, end, rows.head, s.score + r * kTILE);
    for (int i = 0; i < R; ++i)
    {
        softmaxRow(rows, r + i, position, end, capped);
    }
    weighRows<R>(s.current + at, rows.padded, tile, next, end, rows.head, s.score + r * kTILE, s.factor + r);
}

template <typename T>
static void attendTile(Rows const& rows, int32_t position, Tile<T> const& tile, Tile<T> const* next, float capped)
{
    int32_t r = 0;
    // Only the first group of rows asks for the next tile.
    auto group = [&](auto size)
    {
        constexpr int R = decltype(size)::value;
        for (; r + R <= rows.count; r += R, next = nullptr)
        {
            attendRows<R>(rows, r, position, tile, next, capped);
        }
    };
    if constexpr (kREGISTER_ROWS >= 6)
    {
        group(Number<6>{});
    }
    if (kREGISTER_ROWS >= 6 || rows.count % 3 != 0)
    {
        group(Number<4>{});
    }
    group(Number<3>{});
    group(Number<2>{});
    group(Number<1>{});
}

//! The runs of keys [max(position, lowest's run), min(position + 64, highest)) of a request.
template <typename T>
static Tile<T> findTile(Rows const& rows, int32_t request, int32_t kvHead, int32_t position, int32_t highest)
{
    trtforge_paged_attention_args const& a = *rows.args;
    int64_t const plane = static_cast<int64_t>(a.num_kv_heads) * a.block_size * rows.head;
    int32_t const* table = a.block_table + request * a.block_table_stride;
    Tile<T> tile;
    tile.segments = 0;
    tile.stride = rows.head;
    int32_t const step = smaller(a.block_size, kTILE);
    for (int32_t offset = 0; offset < kTILE; offset += step)
    {
        int32_t const first = position + offset;
        if (first >= highest)
        {
            break;
        }
        if (first + step <= rows.lowest)
        {
            continue; // out of every row's window: the block may already belong to somebody else
        }
        int64_t const block = table[first / a.block_size];
        int64_t const slot = first % a.block_size;
        T const* key = static_cast<T const*>(a.kv_pool) + block * 2 * plane
            + (static_cast<int64_t>(kvHead) * a.block_size + slot) * rows.head;
        tile.key[tile.segments] = key;
        tile.value[tile.segments] = key + plane;
        tile.offset[tile.segments] = offset;
        tile.count[tile.segments] = smaller(step, highest - first);
        ++tile.segments;
    }
    return tile;
}

//! Converts a tile to float32 rows of the scratch: worth it when several groups of rows read it.
template <typename T>
static Tile<float> convertTile(Rows const& rows, Tile<T> const& tile)
{
    constexpr int kPARTS = Parts<T>::value;
    Tile<float> out;
    out.segments = tile.segments;
    out.stride = rows.padded;
    for (int32_t i = 0; i < tile.segments; ++i)
    {
        out.offset[i] = tile.offset[i];
        out.count[i] = tile.count[i];
        float* key = rows.scratch.key + static_cast<int64_t>(tile.offset[i]) * rows.padded;
        float* value = rows.scratch.value + static_cast<int64_t>(tile.offset[i]) * rows.padded;
        out.key[i] = key;
        out.value[i] = value;
        for (int32_t j = 0; j < tile.count[i]; ++j)
        {
            T const* k = tile.key[i] + static_cast<int64_t>(j) * tile.stride;
            T const* v = tile.value[i] + static_cast<int64_t>(j) * tile.stride;
            int32_t e = 0;
            for (; e < groupedElements<T>(rows.head); e += kPARTS * kLANES)
            {
                Vec parts[kPARTS];
                loadGroup(k + e, parts);
                for (int part = 0; part < kPARTS; ++part)
                {
                    store(key + e + part * kLANES, parts[part]);
                }
                loadGroup(v + e, parts);
                for (int part = 0; part < kPARTS; ++part)
                {
                    store(value + e + part * kLANES, parts[part]);
                }
            }
            for (; e + kLANES <= rows.head; e += kLANES)
            {
                store(key + e, load(k + e));
                store(value + e, load(v + e));
            }
            if (kLANES > 8 && e < rows.head)
            {
                store(key + e, loadHalf(k + e));
                store(value + e, loadHalf(v + e));
            }
            key += rows.padded;
            value += rows.padded;
        }
    }
    return out;
}

template <typename T>
struct IsFloat
{
    static constexpr bool value = false;
};
template <>
struct IsFloat<float>
{
    static constexpr bool value = true;
};

//! scratch.current, .maximum, .sum = the softmax state over the keys of one chunk.
template <typename T>
static void attendChunk(Rows const& rows, int32_t request, int32_t kvHead, int32_t chunk, float capped)
{
    clearRows(rows, rows.scratch.current, rows.scratch.maximum, rows.scratch.sum);
    int32_t const end = smaller((chunk + 1) * kCHUNK, rows.highest);
    int32_t const begin = larger(chunk * kCHUNK, rows.lowest / kTILE * kTILE);
    if (begin >= end)
    {
        return;
    }
    Tile<T> tile = findTile<T>(rows, request, kvHead, begin, end);
    for (int32_t position = begin; position < end; position += kTILE)
    {
        Tile<T> next;
        next.segments = 0;
        if (position + kTILE < end)
        {
            next = findTile<T>(rows, request, kvHead, position + kTILE, end);
        }
        if (IsFloat<T>::value || rows.count <= 2 * kREGISTER_ROWS)
        {
            attendTile(rows, position, tile, next.segments > 0 ? &next : nullptr, capped);
        }
        else
        {
            Tile<float> const converted = convertTile(rows, tile);
            attendTile(rows, position, converted, static_cast<Tile<float> const*>(nullptr), capped);
        }
        tile = next;
    }
}

template <typename T>
static void runTask(AttentionCall const& call, AttentionTask const& task, void* memory)
{
    trtforge_paged_attention_args const& a = *call.args;
    Rows const rows = describeRows(call, task.request, task.tokenBegin, task.tokenCount, memory);
    Scratch const& s = rows.scratch;
    float const natural = a.scale * a.k_scale / Unit<T>::value;
    float const multiplier = a.soft_cap > 0.0F ? natural / a.soft_cap : natural * kLOG2E;
    float const capped = a.soft_cap > 0.0F ? a.soft_cap * kLOG2E : 0.0F;
    switch (a.activation_dtype)
    {
    case TRTFORGE_FLOAT32: loadQueries<float, T>(rows, task.kvHead, multiplier); break;
    case TRTFORGE_BFLOAT16: loadQueries<Bf16, T>(rows, task.kvHead, multiplier); break;
    default: loadQueries<Fp16, T>(rows, task.kvHead, multiplier); break;
    }
    if (task.partial >= 0)
    {
        attendChunk<T>(rows, task.request, task.kvHead, task.chunkBegin, capped);
        float* out = call.partials + task.partial;
        size_t const floats = static_cast<size_t>(rows.count) * rows.padded;
        __builtin_memcpy(out, s.current, sizeof(float) * floats);
        __builtin_memcpy(out + floats, s.maximum, sizeof(float) * rows.count);
        __builtin_memcpy(out + floats + rows.count, s.sum, sizeof(float) * rows.count);
        return;
    }
    clearRows(rows, s.total, s.totalMaximum, s.totalSum);
    for (int32_t chunk = task.chunkBegin; chunk < task.chunkEnd; ++chunk)
    {
        attendChunk<T>(rows, task.request, task.kvHead, chunk, capped);
        mergeState(rows, s.current, s.maximum, s.sum);
    }
    writeOutput(rows, task.kvHead, a.v_scale / Unit<T>::value);
}

static void attentionTask(AttentionCall const& call, AttentionTask const& task, void* scratch)
{
    switch (call.args->pool_dtype)
    {
    case TRTFORGE_FLOAT32: runTask<float>(call, task, scratch); break;
    case TRTFORGE_BFLOAT16: runTask<Bf16>(call, task, scratch); break;
    case TRTFORGE_FLOAT16: runTask<Fp16>(call, task, scratch); break;
    default: runTask<E4m3>(call, task, scratch); break;
    }
}

static void attentionMerge(AttentionCall const& call, AttentionMerge const& merge, void* memory)
{
    trtforge_paged_attention_args const& a = *call.args;
    Rows const rows = describeRows(call, merge.request, merge.tokenBegin, merge.tokenCount, memory);
    clearRows(rows, rows.scratch.total, rows.scratch.totalMaximum, rows.scratch.totalSum);
    float const* partial = call.partials + merge.partial;
    int64_t const floats = static_cast<int64_t>(rows.count) * rows.padded;
    for (int32_t chunk = 0; chunk < merge.chunks; ++chunk)
    {
        mergeState(rows, partial, partial + floats, partial + floats + rows.count);
        partial += partialFloats(call, rows.count);
    }
    float const unit = a.pool_dtype == TRTFORGE_FLOAT8_E4M3 ? kE4M3_UNIT : 1.0F;
    writeOutput(rows, merge.kvHead, a.v_scale / unit);
}

template <typename From, typename To>
TRTFORGE_INLINE void writeHead(From const* from, To* to, int32_t head, float scale)
{
    Vec const divisor = set1(scale);
    int32_t e = 0;
    for (; e + kLANES <= head; e += kLANES)
    {
        store(to + e, div(load(from + e), divisor));
    }
    for (; e < head; ++e)
    {
        storeOne(to + e, toFloat(from[e]) / scale);
    }
}

template <typename From, typename To>
static void writeTokens(AttentionCall const& call, int64_t begin, int64_t end)
{
    trtforge_paged_attention_args const& a = *call.args;
    int64_t const plane = static_cast<int64_t>(a.num_kv_heads) * a.block_size * a.head_size;
    for (int32_t b = 0; b < a.num_requests; ++b)
    {
        int64_t const first = a.query_start[b];
        int64_t const last = a.query_start[b + 1];
        int64_t const base = a.sequence_lengths[b] - (last - first);
        for (int64_t t = first > begin ? first : begin; t < (last < end ? last : end); ++t)
        {
            int64_t const position = base + (t - first);
            int64_t const block = a.block_table[b * a.block_table_stride + position / a.block_size];
            To* slot = static_cast<To*>(a.kv_pool) + block * 2 * plane + (position % a.block_size) * a.head_size;
            From const* key = static_cast<From const*>(a.key) + t * a.key_stride;
            From const* value = static_cast<From const*>(a.value) + t * a.value_stride;
            for (int32_t k = 0; k < a.num_kv_heads; ++k)
            {
                int64_t const from = static_cast<int64_t>(k) * a.head_size;
                int64_t const to = from * a.block_size;
                writeHead(key + from, slot + to, a.head_size, a.k_scale);
                writeHead(value + from, slot + plane + to, a.head_size, a.v_scale);
            }
        }
    }
}

template <typename From>
TRTFORGE_INLINE void writeAs(AttentionCall const& call, int64_t begin, int64_t end)
{
    switch (call.args->pool_dtype)
    {
    case TRTFORGE_FLOAT32: writeTokens<From, float>(call, begin, end); break;
    case TRTFORGE_BFLOAT16: writeTokens<From, Bf16>(call, begin, end); break;
    case TRTFORGE_FLOAT16: writeTokens<From, Fp16>(call, begin, end); break;
    default: writeTokens<From, E4m3>(call, begin, end); break;
    }
}

static void attentionWrite(AttentionCall const& call, int64_t begin, int64_t end)
{
    switch (call.args->activation_dtype)
    {
    case TRTFORGE_FLOAT32: writeAs<float>(call, begin, end); break;
    case TRTFORGE_BFLOAT16: writeAs<Bf16>(call, begin, end); break;
    default: writeAs<Fp16>(call, begin, end); break;
    }
}

} // namespace TRTFORGE_ISA_NAMESPACE
} // namespace trtforge

#endif // TRTFORGE_ATTENTION_KERNELS_HPP
