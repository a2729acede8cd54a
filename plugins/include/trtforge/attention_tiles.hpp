//! \file attention_tiles.hpp
//! \brief Register kernels of attention: scores of R query rows against a tile of keys, and weighted sums of its values.
#ifndef TRTFORGE_ATTENTION_TILES_HPP
#define TRTFORGE_ATTENTION_TILES_HPP

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

constexpr float kMINUS_INFINITY = -__builtin_inff();

TRTFORGE_INLINE int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}
TRTFORGE_INLINE int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

//! E4M3 is cheaper to convert two vectors at a time, and cheaper still in groups of four.
template <typename T>
struct Paired
{
    static constexpr bool value = false;
};
template <>
struct Paired<E4m3>
{
    static constexpr bool value = Parts<E4m3>::value == 1;
};

//! Elements of a head that whole groups cover; the rest comes in order.
template <typename T>
TRTFORGE_INLINE int32_t groupedElements(int32_t head)
{
    constexpr int kGROUP = Parts<T>::value * kLANES;
    return Parts<T>::value == 1 ? 0 : head / kGROUP * kGROUP;
}

//! Keys per register tile: what sixteen (or thirty-two) registers hold beside the accumulators.
template <int R, typename T>
struct Keys
{
    static constexpr int value = (kREGISTER_ROWS < 6 && (R == 4 || (R == 3 && Paired<T>::value)))
            || (Parts<T>::value == 4 && R > 4)
        ? 2
        : 4;
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

//! Four parts come out of one conversion: keys outside, queries read again.
template <int R, int C, typename T>
TRTFORGE_INLINE void multiplyGroup(
    float const* query, int32_t padded, T const* const* row, int32_t e, Vec (&sums)[R][C])
{
    for (int c = 0; c < C; ++c)
    {
        Vec k[4];
        loadGroup(row[c] + e, k);
        for (int r = 0; r < R; ++r)
        {
            float const* q = query + r * padded + e;
            for (int part = 0; part < 4; ++part)
            {
                sums[r][c] = fma(load(q + part * kLANES), k[part], sums[r][c]);
            }
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
    if constexpr (Parts<T>::value == 4)
    {
        for (; e + 4 * kLANES <= whole; e += 4 * kLANES)
        {
            multiplyGroup(query, padded, row, e, sums);
        }
    }
    if constexpr (Parts<T>::value == 2)
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
            if constexpr (Parts<T>::value == 4 && C == 4)
            {
                Vec v[C];
                loadGroup(row, v);
                for (int r = 0; r < R; ++r)
                {
                    Vec const p = set1(w[r * kTILE + j]);
                    for (int c = 0; c < C; ++c)
                    {
                        sums[r][c] = fma(p, v[c], sums[r][c]);
                    }
                }
            }
            else if constexpr (Paired<T>::value && C % 2 == 0)
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
                    if constexpr (Parts<T>::value == 2 && C % 2 == 0)
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
        = kREGISTER_ROWS >= 6 ? 4 : (R == 1 ? 8 : (R == 4 ? (Paired<T>::value || Parts<T>::value == 2 ? 2 : 3) : 4));
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

} // namespace TRTFORGE_ISA_NAMESPACE
} // namespace trtforge

#endif // TRTFORGE_ATTENTION_TILES_HPP
