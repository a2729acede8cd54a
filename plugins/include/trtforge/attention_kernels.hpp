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

#include "trtforge/simd.hpp"

namespace trtforge
{
namespace TRTFORGE_ISA_NAMESPACE
{

template <int N>
struct Number
{
    static constexpr int value = N;
};

template <typename T>
struct Unit
{
    static constexpr float value = 1.0F;
};
template <>
struct Unit<E4m3>
{
    static constexpr float value = kE4M3_UNIT;
};

//! Up to 64 keys: runs of rows that are contiguous in one block (or in a converted copy).
template <typename T>
struct Tile
{
    T const* key[kSEGMENTS];
    T const* value[kSEGMENTS];
    int32_t offset[kSEGMENTS]; //!< of the run's first key, from the tile's first position
    int32_t count[kSEGMENTS];
    int32_t segments;
    int32_t stride; //!< elements between rows
};

struct Scratch
{
    float* query;   //!< [rows, P], P = padded head
    float* current; //!< [rows, P] accumulators of the chunk
    float* total;   //!< [rows, P] accumulators of the finished chunks
    float* score;   //!< [rows, 64]
    float* maximum; //!< [rows] of the chunk
    float* sum;
    float* totalMaximum;
    float* totalSum;
    float* factor;
    int32_t* low;  //!< [rows] first visible position
    int32_t* high; //!< [rows] end of the visible positions
    float* key;    //!< [64, P]
    float* value;
};

constexpr float kMINUS_INFINITY = -__builtin_inff();

TRTFORGE_INLINE int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}
TRTFORGE_INLINE int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static size_t attentionScratch(AttentionCall const& call)
{
    size_t const rows = static_cast<size_t>(call.maxRows);
    size_t const padded = static_cast<size_t>(call.paddedHead);
    return sizeof(float) * (3 * rows * padded + rows * kTILE + 7 * ((rows + 15) / 16 * 16) + 2 * kTILE * padded);
}

TRTFORGE_INLINE Scratch carve(AttentionCall const& call, void* memory)
{
    size_t const rows = static_cast<size_t>(call.maxRows);
    size_t const padded = static_cast<size_t>(call.paddedHead);
    size_t const column = (rows + 15) / 16 * 16;
    Scratch s;
    float* p = static_cast<float*>(memory);
    s.query = p;
    p += rows * padded;
    s.current = p;
    p += rows * padded;
    s.total = p;
    p += rows * padded;
    s.key = p;
    p += kTILE * padded;
    s.value = p;
    p += kTILE * padded;
    s.score = p;
    p += rows * kTILE;
    s.maximum = p;
    p += column;
    s.sum = p;
    p += column;
    s.totalMaximum = p;
    p += column;
    s.totalSum = p;
    p += column;
    s.factor = p;
    p += column;
    s.low = reinterpret_cast<int32_t*>(p);
    p += column;
    s.high = reinterpret_cast<int32_t*>(p);
    return s;
}

static int64_t partialFloats(AttentionCall const& call, int32_t rows)
{
    return static_cast<int64_t>(rows) * (call.paddedHead + 2);
}

//! E4M3 is cheaper to convert two vectors at a time.
template <typename T>
struct Paired
{
    static constexpr bool value = false;
};
template <>
struct Paired<E4m3>
{
    static constexpr bool value = true;
};

//! Whether loadPart gives even and odd elements of this type.
template <typename T>
struct Split
{
    static constexpr bool value = false;
};
#if !defined(TRTFORGE_GENERIC_LANES)
template <>
struct Split<Bf16>
{
    static constexpr bool value = true;
};
#endif

//! Elements of a head that loadPart covers; the rest comes in order.
TRTFORGE_INLINE int32_t splitElements(int32_t head)
{
    return head / (2 * kLANES) * (2 * kLANES);
}

//! Keys per register tile: what sixteen (or thirty-two) registers hold beside the accumulators.
template <int R, typename T>
struct Keys
{
    static constexpr int value = kREGISTER_ROWS < 6 && (R == 4 || (R == 3 && Paired<T>::value)) ? 2 : 4;
};

template <int PART, int R, int C, typename T>
TRTFORGE_INLINE void multiplyPart(
    float const* query, int32_t padded, T const* const* row, int32_t e, Vec (&sums)[R][C])
{
    Vec q[R];
    for (int r = 0; r < R; ++r)
    {
        q[r] = load(query + r * padded + e + PART * kLANES);
    }
    for (int c = 0; c < C; ++c)
    {
        Vec const k = pinned(loadPart<PART>(row[c] + e));
        for (int r = 0; r < R; ++r)
        {
            sums[r][c] = fma(q[r], k, sums[r][c]);
        }
    }
}

template <int R, int C, typename T>
TRTFORGE_INLINE void multiply(
    float const* query, int32_t padded, T const* const* row, int32_t whole, int32_t head, Vec (&sums)[R][C])
{
    int32_t e = 0;
    if constexpr (Paired<T>::value)
    {
        for (; e + 2 * kLANES <= whole; e += 2 * kLANES)
        {
            for (int c = 0; c < C; ++c)
            {
                Vec k[2];
                loadPair(row[c] + e, k[0], k[1]);
                for (int r = 0; r < R; ++r)
                {
                    float const* q = query + r * padded + e;
                    sums[r][c] = fma(load(q + kLANES), k[1], fma(load(q), k[0], sums[r][c]));
                }
            }
        }
    }
    if constexpr (Split<T>::value)
    {
        for (; e + 2 * kLANES <= whole; e += 2 * kLANES)
        {
            multiplyPart<0>(query, padded, row, e, sums);
            multiplyPart<1>(query, padded, row, e, sums);
        }
    }
    for (; e < whole; e += kLANES)
    {
        Vec q[R];
        for (int r = 0; r < R; ++r)
        {
            q[r] = load(query + r * padded + e);
        }
        for (int c = 0; c < C; ++c)
        {
            Vec const k = R > 1 ? pinned(load(row[c] + e)) : load(row[c] + e);
            for (int r = 0; r < R; ++r)
            {
                sums[r][c] = fma(q[r], k, sums[r][c]);
            }
        }
    }
    if (kLANES > 8 && whole < head)
    {
        for (int c = 0; c < C; ++c)
        {
            Vec const k = loadHalf(row[c] + whole);
            for (int r = 0; r < R; ++r)
            {
                sums[r][c] = fma(load(query + r * padded + whole), k, sums[r][c]);
            }
        }
    }
}

//! Asks for bytes that the next tile will read. Spread over the work of this one, so that memory is never idle.
template <typename T>
TRTFORGE_INLINE void prefetch(T const* from, int64_t elements)
{
    char const* p = reinterpret_cast<char const*>(from);
    for (int64_t b = 0; b < elements * static_cast<int64_t>(sizeof(T)); b += 64)
    {
        __builtin_prefetch(p + b, 0, 3);
    }
}

template <int R, typename T>
TRTFORGE_INLINE void scoreSegment(float const* query, int32_t padded, T const* keys, int32_t stride, int32_t count,
    int32_t head, float* score, T const* nextKeys)
{
    constexpr int C = Keys<R, T>::value;
    int32_t const whole = head / kLANES * kLANES;
    for (int32_t j = 0; j < count; j += C)
    {
        T const* row[C];
        for (int c = 0; c < C; ++c)
        {
            // Past the end the last row is read again; its scores are masked.
            row[c] = keys + static_cast<int64_t>(smaller(j + c, count - 1)) * stride;
        }
        if (nextKeys != nullptr)
        {
            prefetch(nextKeys + static_cast<int64_t>(j) * stride, C * head);
        }
        Vec sums[R][C];
        for (int r = 0; r < R; ++r)
        {
            for (int c = 0; c < C; ++c)
            {
                sums[r][c] = zero();
            }
        }
        multiply<R, C>(query, padded, row, whole, head, sums);
        if constexpr (C == 4)
        {
            for (int r = 0; r < R; ++r)
            {
                reduce4(sums[r][0], sums[r][1], sums[r][2], sums[r][3], score + r * kTILE + j);
            }
        }
        else
        {
            for (int r = 0; r < R; r += 2)
            {
                int const other = r + 1 < R ? r + 1 : r;
                float four[4];
                reduce4(sums[r][0], sums[r][1], sums[other][0], sums[other][1], four);
                __builtin_memcpy(score + r * kTILE + j, four, 8);
                __builtin_memcpy(score + other * kTILE + j, four + 2, 8);
            }
        }
    }
}

template <int R, typename T>
static __attribute__((noinline)) void scoreRows(
    float const* query, int32_t padded, Tile<T> const& tile, Tile<T> const* next, int32_t end, int32_t head, float* score)
{
    for (int32_t i = 0; i < tile.segments; ++i)
    {
        int32_t const count = smaller(tile.count[i], end - tile.offset[i]);
        if (count <= 0)
        {
            break;
        }
        bool const fetch = next != nullptr && i < next->segments;
        scoreSegment<R>(query, padded, tile.key[i], tile.stride, count, head, score + tile.offset[i],
            fetch ? next->key[i] : nullptr);
    }
}

//! accumulator[r] = accumulator[r] * factor[r] + sum_j weight[r][j] * value[j], for C vectors of the head.
template <int R, int C, bool HALF, typename T>
TRTFORGE_INLINE void weighColumns(float* accumulator, int32_t padded, Tile<T> const& tile, Tile<T> const* next,
    int32_t end, int32_t e, float const* weight, float const* factor)
{
    Vec sums[R][C];
    for (int r = 0; r < R; ++r)
    {
        Vec const f = set1(factor[r]);
        for (int c = 0; c < C; ++c)
        {
            sums[r][c] = mul(load(accumulator + r * padded + e + c * kLANES), f);
        }
    }
    for (int32_t i = 0; i < tile.segments; ++i)
    {
        int32_t const count = smaller(tile.count[i], end - tile.offset[i]);
        T const* row = tile.value[i] + e;
        // The next run is contiguous: the passes over the head sweep it once, in order.
        T const* ahead
            = next != nullptr && i < next->segments ? next->value[i] + static_cast<int64_t>(e) * count : nullptr;
        float const* w = weight + tile.offset[i];
        for (int32_t j = 0; j < count; ++j)
        {
            if (ahead != nullptr)
            {
                prefetch(ahead, C * kLANES);
                ahead += C * kLANES;
            }
            if constexpr (Paired<T>::value && C % 2 == 0)
            {
                for (int c = 0; c < C; c += 2)
                {
                    Vec v[2];
                    loadPair(row + c * kLANES, v[0], v[1]);
                    for (int r = 0; r < R; ++r)
                    {
                        Vec const p = set1(w[r * kTILE + j]);
                        sums[r][c] = fma(p, v[0], sums[r][c]);
                        sums[r][c + 1] = fma(p, v[1], sums[r][c + 1]);
                    }
                }
            }
            else if constexpr (R > C && C == 3)
            {
                // Four rows x three vectors and the values fill sixteen registers: weights pass one at a time.
                Vec v[C];
                for (int c = 0; c < C; ++c)
                {
                    v[c] = pinned(HALF ? loadHalf(row + c * kLANES) : load(row + c * kLANES));
                }
                for (int r = 0; r < R; ++r)
                {
                    Vec const p = set1(w[r * kTILE + j]);
                    for (int c = 0; c < C; ++c)
                    {
                        sums[r][c] = fma(p, v[c], sums[r][c]);
                    }
                }
            }
            else
            {
                Vec p[R];
                for (int r = 0; r < R; ++r)
                {
                    p[r] = set1(w[r * kTILE + j]);
                }
                for (int c = 0; c < C; ++c)
                {
                    Vec v;
                    if constexpr (Split<T>::value && C % 2 == 0)
                    {
                        T const* pair = row + c / 2 * 2 * kLANES;
                        v = c % 2 == 0 ? loadPart<0>(pair) : loadPart<1>(pair);
                    }
                    else
                    {
                        v = HALF ? loadHalf(row + c * kLANES) : load(row + c * kLANES);
                    }
                    v = R > 1 ? pinned(v) : v;
                    for (int r = 0; r < R; ++r)
                    {
                        sums[r][c] = fma(p[r], v, sums[r][c]);
                    }
                }
            }
            row += tile.stride;
        }
    }
    for (int r = 0; r < R; ++r)
    {
        for (int c = 0; c < C; ++c)
        {
            store(accumulator + r * padded + e + c * kLANES, sums[r][c]);
        }
    }
}

//! Vectors of the head per pass: as many as keep the accumulators and one set of values in registers.
template <int R, typename T>
struct Columns
{
    static constexpr int value
        = kREGISTER_ROWS >= 6 ? 4 : (R == 1 ? 8 : (R == 4 ? (Paired<T>::value || Split<T>::value ? 2 : 3) : 4));
};

template <int R, typename T>
static __attribute__((noinline)) void weighRows(float* accumulator, int32_t padded, Tile<T> const& tile,
    Tile<T> const* next, int32_t end, int32_t head, float const* weight, float const* factor)
{
    constexpr int C = Columns<R, T>::value;
    int32_t e = 0;
    for (; e + C * kLANES <= head; e += C * kLANES)
    {
        weighColumns<R, C, false>(accumulator, padded, tile, next, end, e, weight, factor);
    }
    for (; e + 2 * kLANES <= head; e += 2 * kLANES)
    {
        weighColumns<R, 2, false>(accumulator, padded, tile, next, end, e, weight, factor);
    }
    for (; e + kLANES <= head; e += kLANES)
    {
        weighColumns<R, 1, false>(accumulator, padded, tile, next, end, e, weight, factor);
    }
    if (kLANES > 8 && e < head)
    {
        weighColumns<R, 1, true>(accumulator, padded, tile, next, end, e, weight, factor);
    }
}

//! A call's constants and one task's rows.
struct Rows
{
    trtforge_paged_attention_args const* args;
    Scratch scratch;
    int32_t count;
    int32_t group;
    int32_t padded;
    int32_t head;
    int32_t tokenBegin;   //!< in the request
    int32_t globalToken;  //!< row of the request's first new token in query and tree mask
    int32_t base;         //!< context length before the new tokens
    int32_t newTokens;
    int32_t lowest;  //!< smallest visible position of any row
    int32_t highest; //!< end of the visible positions of all rows
};

static Rows describeRows(
    AttentionCall const& call, int32_t request, int32_t tokenBegin, int32_t tokenCount, void* memory)
{
    trtforge_paged_attention_args const& a = *call.args;
    Rows rows;
    rows.args = call.args;
    rows.scratch = carve(call, memory);
    rows.group = call.group;
    rows.count = tokenCount * call.group;
    rows.padded = call.paddedHead;
    rows.head = a.head_size;
    rows.tokenBegin = tokenBegin;
    rows.globalToken = a.query_start[request];
    rows.newTokens = a.query_start[request + 1] - a.query_start[request];
    rows.base = a.sequence_lengths[request] - rows.newTokens;
    rows.lowest = 0x7fffffff;
    rows.highest = 0;
    for (int32_t t = 0; t < tokenCount; ++t)
    {
        int32_t const token = tokenBegin + t;
        int32_t position = rows.base + token;
        int32_t high = position + 1;
        if (a.tree_mask != nullptr)
        {
            // The node's depth, counted from its ancestors, gives its position in the text.
            uint8_t const* mask = a.tree_mask + (rows.globalToken + token) * a.tree_mask_stride;
            int32_t seen = 0;
            for (int32_t j = 0; j < rows.newTokens; ++j)
            {
                seen += mask[j] != 0 ? 1 : 0;
            }
            position = rows.base + larger(seen, 1) - 1;
            high = rows.base + rows.newTokens;
        }
        int32_t low = 0;
        if (a.sliding_window > 0)
        {
            low = larger(0, position - a.sliding_window + 1);
            low = a.tree_mask != nullptr ? smaller(low, rows.base) : low;
        }
        rows.lowest = smaller(rows.lowest, low);
        rows.highest = larger(rows.highest, high);
        for (int32_t g = 0; g < call.group; ++g)
        {
            rows.scratch.low[t * call.group + g] = low;
            rows.scratch.high[t * call.group + g] = high;
        }
    }
    return rows;
}

//! Rows of the scratch take the order of loadPart when the pool's type is split.
template <typename T>
static void loadQueries(Rows const& rows, int32_t kvHead, float multiplier, bool split)
{
    trtforge_paged_attention_args const& a = *rows.args;
    Vec const m = set1(multiplier);
    for (int32_t r = 0; r < rows.count; ++r)
    {
        int64_t const token = rows.globalToken + rows.tokenBegin + r / rows.group;
        int64_t const column = static_cast<int64_t>(kvHead * rows.group + r % rows.group) * rows.head;
        T const* from = static_cast<T const*>(a.query) + token * a.query_stride + column;
        float* to = rows.scratch.query + static_cast<int64_t>(r) * rows.padded;
        int32_t e = 0;
        for (; split && e < splitElements(rows.head); e += 2 * kLANES)
        {
            for (int i = 0; i < kLANES; ++i)
            {
                to[e + i] = toFloat(from[e + 2 * i]) * multiplier;
                to[e + kLANES + i] = toFloat(from[e + 2 * i + 1]) * multiplier;
            }
        }
        for (; e + kLANES <= rows.head; e += kLANES)
        {
            store(to + e, mul(load(from + e), m));
        }
        if (kLANES > 8 && e < rows.head)
        {
            store(to + e, mul(loadHalf(from + e), m));
        }
    }
}

//! Turns the scores of one row into weights and updates its running maximum and sum.
static __attribute__((noinline)) void softmaxRow(Rows const& rows, int32_t r, int32_t position, int32_t end, float capped)
{
    Scratch const& s = rows.scratch;
    trtforge_paged_attention_args const& a = *rows.args;
    float* score = s.score + static_cast<int64_t>(r) * kTILE;
    int32_t const padded = (end + kLANES - 1) / kLANES * kLANES;
    if (capped != 0.0F)
    {
        for (int32_t j = 0; j < padded; j += kLANES)
        {
            store(score + j, mul(tanh(load(score + j)), set1(capped)));
        }
    }
    int32_t const low = smaller(larger(0, s.low[r] - position), padded);
    int32_t const high = smaller(larger(low, s.high[r] - position), smaller(end, padded));
    for (int32_t j = 0; j < low; ++j)
    {
        score[j] = kMINUS_INFINITY;
    }
    for (int32_t j = larger(high, low); j < padded; ++j)
    {
        score[j] = kMINUS_INFINITY;
    }
    if (a.tree_mask != nullptr && position + end > rows.base)
    {
        int64_t const token = rows.globalToken + rows.tokenBegin + r / rows.group;
        uint8_t const* mask = a.tree_mask + token * a.tree_mask_stride;
        for (int32_t j = larger(0, rows.base - position); j < high; ++j)
        {
            score[j] = mask[position + j - rows.base] != 0 ? score[j] : kMINUS_INFINITY;
        }
    }
    Vec top = set1(kMINUS_INFINITY);
    for (int32_t j = 0; j < padded; j += kLANES)
    {
        top = max(load(score + j), top);
    }
    float const before = s.maximum[r];
    float const tileMaximum = maxLanes(top);
    float const now = tileMaximum > before ? tileMaximum : before;
    if (now == kMINUS_INFINITY)
    {
        // Nothing visible here, or nothing but NaN, which must not come out as zeros.
        bool nan = false;
        for (int32_t j = 0; j < padded; ++j)
        {
            nan = nan || score[j] != score[j];
            score[j] = 0.0F;
        }
        s.factor[r] = 1.0F;
        if (nan)
        {
            s.maximum[r] = 0.0F;
            s.sum[r] = __builtin_nanf("");
        }
        return;
    }
    Vec const shift = set1(now);
    Vec sum = zero();
    for (int32_t j = 0; j < padded; j += kLANES)
    {
        Vec const p = exp2(sub(load(score + j), shift));
        store(score + j, p);
        sum = add(sum, p);
    }
    float const factor = before == now ? 1.0F : exp2One(before - now);
    s.factor[r] = factor;
    s.maximum[r] = now;
    s.sum[r] = s.sum[r] * factor + sumLanes(sum);
}

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
            for (; e < splitElements(rows.head); e += 2 * kLANES)
            {
                store(key + e, loadPart<0>(k + e));
                store(key + e + kLANES, loadPart<1>(k + e));
                store(value + e, loadPart<0>(v + e));
                store(value + e + kLANES, loadPart<1>(v + e));
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

static void clearRows(Rows const& rows, float* accumulator, float* maximum, float* sum)
{
    __builtin_memset(accumulator, 0, sizeof(float) * static_cast<size_t>(rows.count) * rows.padded);
    for (int32_t r = 0; r < rows.count; ++r)
    {
        maximum[r] = kMINUS_INFINITY;
        sum[r] = 0.0F;
    }
}

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

//! total = total (+) state, in the order of the chunks.
static void mergeState(
    Rows const& rows, float const* accumulator, float const* maximum, float const* sum)
{
    Scratch const& s = rows.scratch;
    for (int32_t r = 0; r < rows.count; ++r)
    {
        if (maximum[r] == kMINUS_INFINITY)
        {
            continue;
        }
        float const before = s.totalMaximum[r];
        float const now = maximum[r] > before ? maximum[r] : before;
        float const old = before == kMINUS_INFINITY ? 0.0F : exp2One(before - now);
        float const fresh = exp2One(maximum[r] - now);
        s.totalMaximum[r] = now;
        s.totalSum[r] = s.totalSum[r] * old + sum[r] * fresh;
        float* total = s.total + static_cast<int64_t>(r) * rows.padded;
        float const* from = accumulator + static_cast<int64_t>(r) * rows.padded;
        for (int32_t e = 0; e < rows.padded; e += kLANES)
        {
            store(total + e, fma(load(from + e), set1(fresh), mul(load(total + e), set1(old))));
        }
    }
}

template <typename T>
static void writeRows(Rows const& rows, int32_t kvHead, float multiplier)
{
    Scratch const& s = rows.scratch;
    trtforge_paged_attention_args const& a = *rows.args;
    bool const split = Split<Bf16>::value && a.pool_dtype == TRTFORGE_BFLOAT16;
    for (int32_t r = 0; r < rows.count; ++r)
    {
        int32_t const head = kvHead * rows.group + r % rows.group;
        int64_t const token = rows.globalToken + rows.tokenBegin + r / rows.group;
        float sum = s.totalSum[r];
        float rescale = 1.0F;
        if (a.sinks != nullptr)
        {
            float const sink = a.sinks[head] * kLOG2E;
            float const now = sink > s.totalMaximum[r] ? sink : s.totalMaximum[r];
            rescale = s.totalMaximum[r] == kMINUS_INFINITY ? 0.0F : exp2One(s.totalMaximum[r] - now);
            sum = sum * rescale + exp2One(sink - now);
        }
        // A row that sees no key at all gives zeros.
        Vec const m = set1(sum == 0.0F ? 0.0F : rescale * multiplier / sum);
        float const* from = s.total + static_cast<int64_t>(r) * rows.padded;
        T* to = static_cast<T*>(a.output) + token * a.output_stride + static_cast<int64_t>(head) * rows.head;
        int32_t e = 0;
        for (; split && e < splitElements(rows.head); e += 2 * kLANES)
        {
            float ordered[2 * kLANES];
            for (int i = 0; i < kLANES; ++i)
            {
                ordered[2 * i] = from[e + i];
                ordered[2 * i + 1] = from[e + kLANES + i];
            }
            store(to + e, mul(load(ordered), m));
            store(to + e + kLANES, mul(load(ordered + kLANES), m));
        }
        for (; e + kLANES <= rows.head; e += kLANES)
        {
            store(to + e, mul(load(from + e), m));
        }
        if (e < rows.head)
        {
            storeSome(to + e, mul(load(from + e), m), rows.head - e);
        }
    }
}

static void writeOutput(Rows const& rows, int32_t kvHead, float multiplier)
{
    switch (rows.args->activation_dtype)
    {
    case TRTFORGE_FLOAT32: writeRows<float>(rows, kvHead, multiplier); break;
    case TRTFORGE_BFLOAT16: writeRows<Bf16>(rows, kvHead, multiplier); break;
    default: writeRows<Fp16>(rows, kvHead, multiplier); break;
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
    bool const split = Split<T>::value;
    switch (a.activation_dtype)
    {
    case TRTFORGE_FLOAT32: loadQueries<float>(rows, task.kvHead, multiplier, split); break;
    case TRTFORGE_BFLOAT16: loadQueries<Bf16>(rows, task.kvHead, multiplier, split); break;
    default: loadQueries<Fp16>(rows, task.kvHead, multiplier, split); break;
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
