//! \file int4_kernels.hpp
//! \brief Linears with INT4 weights in blocks along K: one order of summation for every number of rows.
//!
//! y[m, n] = bias[n] + sum over groups g of scale[n, g] * (sum over k in g of q[n, k] * x[m, k])
//!
//! Lanes are outputs n, so an output's sum runs along k in one thread and one lane: neither the number of rows, nor
//! the tile a row falls into, nor the number of threads can change its order. Weights enter as the integers that are
//! stored and scales as float32: nothing is rounded but the sums.
//!
//! Layout of the weights: panels of 16 outputs; in a panel, for each 8 inputs, 16 words of 32 bits, one an output.
//! A word's lower half holds the nibbles of inputs 0, 2, 4, 6, its upper half those of 1, 3, 5, 7: shifted by 4 j
//! it shows inputs 2j and 2j + 1 in the low nibbles of its halves. Scales [panel, group, 16]. Outputs past N are zeros.
#ifndef TRTFORGE_INT4_KERNELS_HPP
#define TRTFORGE_INT4_KERNELS_HPP

#include "trtforge/simd.hpp"

namespace trtforge
{
namespace TRTFORGE_ISA_NAMESPACE
{

//! Vectors of a panel.
constexpr int kPANEL_VECS = kINT4_PANEL / kLANES;
//! Rows of a tile; with the panels of :panelsOf its sums fill the registers.
constexpr int kINT4_ROWS = 6;
//! Rows that share one unpacking of a group when there are more than a tile's.
constexpr int kINT4_BAND = 96;

//! Panels whose sums a tile of so many rows keeps in registers.
constexpr int panelsOf(int rows)
{
#if defined(TRTFORGE_GENERIC_LANES)
    return rows > 0 ? 1 : 0;
#elif defined(__AVX512F__)
    return rows <= 2 ? 8 : 4;
#else
    return rows == 1 ? 4 : rows <= 2 ? 2 : 1;
#endif
}

//! Panels that are unpacked together for a band.
constexpr int kINT4_UNPACKED = panelsOf(kINT4_ROWS);

// --- float32 activations ----------------------------------------------------------------------------------------

#if defined(TRTFORGE_GENERIC_LANES)
struct Words
{
    uint32_t v[kLANES];
};
TRTFORGE_INLINE Words loadWords(uint32_t const* p)
{
    Words words;
    __builtin_memcpy(words.v, p, sizeof(words.v));
    return words;
}
template <int SHIFT>
TRTFORGE_INLINE Vec nibbles(Words words)
{
    float buffer[kLANES];
    for (int i = 0; i < kLANES; ++i)
    {
        buffer[i] = static_cast<float>(static_cast<int32_t>(words.v[i] << (28 - SHIFT)) >> 28);
    }
    return load(buffer);
}
#elif defined(__AVX512F__)
using Words = __m512i;
TRTFORGE_INLINE Words loadWords(uint32_t const* p)
{
    return _mm512_loadu_si512(p);
}
//! The permutation reads the low four bits of every lane: it is the table of the sixteen values.
template <int SHIFT>
TRTFORGE_INLINE Vec nibbles(Words words)
{
    __m512 const table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return Vec{_mm512_permutexvar_ps(SHIFT == 0 ? words : _mm512_srli_epi32(words, SHIFT), table)};
}
#else
using Words = __m256i;
TRTFORGE_INLINE Words loadWords(uint32_t const* p)
{
    return _mm256_loadu_si256(reinterpret_cast<__m256i const*>(p));
}
template <int SHIFT>
TRTFORGE_INLINE Vec nibbles(Words words)
{
    __m256i const top = SHIFT == 28 ? words : _mm256_slli_epi32(words, 28 - SHIFT);
    return Vec{_mm256_cvtepi32_ps(_mm256_srai_epi32(top, 28))};
}
#endif

//! How eight inputs are multiplied with the words of one vector: one after the other, in the order of k.
struct Singles
{
    using Input = float;
    //! Vectors of unpacked weights for eight inputs.
    static constexpr int kSTEPS = 8;

    template <int STEP>
    TRTFORGE_INLINE Vec unpack(Words words)
    {
        return nibbles<STEP % 2 * 16 + STEP / 2 * 4>(words);
    }
    //! What a row has for a step, in every lane.
    template <int STEP>
    TRTFORGE_INLINE Vec input(Input const* x)
    {
        return set1(x[STEP]);
    }
    TRTFORGE_INLINE Vec multiply(Vec sum, Vec input, Vec weight)
    {
        return fma(input, weight, sum);
    }
};

// --- bfloat16 activations ---------------------------------------------------------------------------------------

#if defined(__AVX512BF16__) && !defined(TRTFORGE_GENERIC_LANES)
//! Two inputs a step: the integers are exact in bfloat16, their products with it in float32.
struct Pairs
{
    using Input = Bf16;
    static constexpr int kSTEPS = 4;

    template <int STEP>
    TRTFORGE_INLINE Vec unpack(Words words)
    {
        // bfloat16 of 0 … 7, -8 … -1, twice: the permutation reads five bits, of which the neighbour's nibble owns one
        __m512i const half = _mm512_set_epi16(static_cast<short>(0xbf80), static_cast<short>(0xc000),
            static_cast<short>(0xc040), static_cast<short>(0xc080), static_cast<short>(0xc0a0),
            static_cast<short>(0xc0c0), static_cast<short>(0xc0e0), static_cast<short>(0xc100), 0x40e0, 0x40c0, 0x40a0,
            0x4080, 0x4040, 0x4000, 0x3f80, 0, static_cast<short>(0xbf80), static_cast<short>(0xc000),
            static_cast<short>(0xc040), static_cast<short>(0xc080), static_cast<short>(0xc0a0),
            static_cast<short>(0xc0c0), static_cast<short>(0xc0e0), static_cast<short>(0xc100), 0x40e0, 0x40c0, 0x40a0,
            0x4080, 0x4040, 0x4000, 0x3f80, 0);
        __m512i const shifted = STEP == 0 ? words : _mm512_srli_epi16(words, 4 * STEP);
        return Vec{_mm512_castsi512_ps(_mm512_permutexvar_epi16(shifted, half))};
    }
    template <int STEP>
    TRTFORGE_INLINE Vec input(Input const* x)
    {
        int32_t pair;
        __builtin_memcpy(&pair, x + 2 * STEP, sizeof(pair));
        return Vec{_mm512_castsi512_ps(_mm512_set1_epi32(pair))};
    }
    TRTFORGE_INLINE Vec multiply(Vec sum, Vec input, Vec weight)
    {
        return Vec{_mm512_dpbf16_ps(
            sum.v, reinterpret_cast<__m512bh>(input.v), reinterpret_cast<__m512bh>(weight.v))};
    }
};
constexpr bool kINT4_PAIRS = true;
#else
constexpr bool kINT4_PAIRS = false;
#endif

// --- tiles ------------------------------------------------------------------------------------------------------

//! Adds what a finished group is worth: one place, so that every path rounds alike.
template <int ROWS, int VECS>
TRTFORGE_INLINE void addGroup(Vec const (&sums)[ROWS][VECS], float const* scales, int64_t scaleStride, float* totals,
    int64_t totalStride)
{
    for (int v = 0; v < VECS; ++v)
    {
        Vec const scale = load(scales + v / kPANEL_VECS * scaleStride + v % kPANEL_VECS * kLANES);
        for (int m = 0; m < ROWS; ++m)
        {
            float* total = totals + m * totalStride + v * kLANES;
            store(total, fma(sums[m][v], scale, load(total)));
        }
    }
}

//! Bias added and rounded once.
template <typename T>
static void finish(trtforge_int4_linear_args const& call, float const* totals, int64_t row, int64_t column, int64_t width)
{
    T* out = static_cast<T*>(call.out) + row * call.out_stride + column;
    float const* bias = call.bias == nullptr ? nullptr : call.bias + column;
    width = width < call.outputs - column ? width : call.outputs - column;
    int64_t i = 0;
    for (; i + kLANES <= width; i += kLANES)
    {
        Vec const y = load(totals + i);
        store(out + i, bias == nullptr ? y : add(y, load(bias + i)));
    }
    for (; i < width; ++i)
    {
        storeOne(out + i, bias == nullptr ? totals[i] : totals[i] + bias[i]);
    }
}

static void finishRow(trtforge_int4_linear_args const& call, float const* totals, int64_t row, int64_t column, int64_t width)
{
    switch (call.out_dtype)
    {
    case TRTFORGE_FLOAT32: finish<float>(call, totals, row, column, width); break;
    case TRTFORGE_BFLOAT16: finish<Bf16>(call, totals, row, column, width); break;
    default: finish<Fp16>(call, totals, row, column, width); break;
    }
}

template <typename M, int ROWS, int VECS, int STEP>
TRTFORGE_INLINE void stepsFrom(
    Vec (&sums)[ROWS][VECS], typename M::Input const* x, int64_t stride, Words words, int v)
{
    Vec const weight = M::template unpack<STEP>(words);
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; ++m)
    {
        sums[m][v] = M::multiply(sums[m][v], M::template input<STEP>(x + m * stride), weight);
    }
    if constexpr (STEP + 1 < M::kSTEPS)
    {
        stepsFrom<M, ROWS, VECS, STEP + 1>(sums, x, stride, words, v);
    }
}

//! ROWS rows times PANELS panels; weights are unpacked in registers on the way.
template <typename M, int ROWS, int PANELS>
static void fewRows(trtforge_int4_linear_args const& call, int64_t row, int64_t panel)
{
    constexpr int kVECS = PANELS * kPANEL_VECS;
    using Input = typename M::Input;
    Input const* x = static_cast<Input const*>(call.x) + row * call.x_stride;
    int64_t const words = call.inputs / 8 * kINT4_PANEL;
    int64_t const groups = call.inputs / call.group;
    uint32_t const* weights = call.weights + panel * words;
    float const* scales = call.scales + panel * groups * kINT4_PANEL;
    float totals[ROWS][kVECS * kLANES] = {};
    for (int64_t g = 0; g < groups; ++g)
    {
        Vec sums[ROWS][kVECS];
#pragma GCC unroll 8
        for (int m = 0; m < ROWS; ++m)
        {
#pragma GCC unroll 32
            for (int v = 0; v < kVECS; ++v)
            {
                sums[m][v] = zero();
            }
        }
        for (int64_t k = 0; k < call.group; k += 8)
        {
#pragma GCC unroll 32
            for (int v = 0; v < kVECS; ++v)
            {
                Words const some = loadWords(weights + v / kPANEL_VECS * words + v % kPANEL_VECS * kLANES);
                stepsFrom<M, ROWS, kVECS, 0>(sums, x, call.x_stride, some, v);
            }
            weights += kINT4_PANEL;
            x += 8;
        }
        addGroup<ROWS, kVECS>(sums, scales + g * kINT4_PANEL, groups * kINT4_PANEL, totals[0], kVECS * kLANES);
    }
    for (int m = 0; m < ROWS; ++m)
    {
        finishRow(call, totals[m], row + m, panel * kINT4_PANEL, PANELS * kINT4_PANEL);
    }
}

//! Panels [panel, end) by tiles of PANELS and, at the end, of half of that.
template <typename M, int ROWS, int PANELS>
static void fewRowsOver(trtforge_int4_linear_args const& call, int64_t row, int64_t panel, int64_t end)
{
    for (; panel + PANELS <= end; panel += PANELS)
    {
        fewRows<M, ROWS, PANELS>(call, row, panel);
    }
    if constexpr (PANELS > 1)
    {
        fewRowsOver<M, ROWS, PANELS / 2>(call, row, panel, end);
    }
}

//! A group of PANELS panels unpacked: [steps, VECS, lanes].
template <typename M, int VECS, int STEP>
TRTFORGE_INLINE void unpackFrom(Words words, float* out)
{
    store(out + STEP * VECS * kLANES, M::template unpack<STEP>(words));
    if constexpr (STEP + 1 < M::kSTEPS)
    {
        unpackFrom<M, VECS, STEP + 1>(words, out);
    }
}

template <typename M, int ROWS, int VECS, int STEP>
TRTFORGE_INLINE void unpackedFrom(Vec (&sums)[ROWS][VECS], typename M::Input const* x, int64_t stride, float const* w)
{
    // The weights of a step and one input at a time: with the sums that is what the registers hold.
    Vec weights[VECS];
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v)
    {
        weights[v] = pinned(load(w + (STEP * VECS + v) * kLANES));
    }
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; ++m)
    {
        Vec const input = pinned(M::template input<STEP>(x + m * stride));
#pragma GCC unroll 8
        for (int v = 0; v < VECS; ++v)
        {
            sums[m][v] = M::multiply(sums[m][v], input, weights[v]);
        }
    }
    if constexpr (STEP + 1 < M::kSTEPS)
    {
        unpackedFrom<M, ROWS, VECS, STEP + 1>(sums, x, stride, w);
    }
}

//! ROWS rows times an unpacked group.
template <typename M, int ROWS, int PANELS>
static void tile(trtforge_int4_linear_args const& call, int64_t row, int64_t k, float const* unpacked, float const* scales,
    int64_t scaleStride, float* totals)
{
    constexpr int kVECS = PANELS * kPANEL_VECS;
    using Input = typename M::Input;
    Input const* x = static_cast<Input const*>(call.x) + row * call.x_stride + k;
    Vec sums[ROWS][kVECS];
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; ++m)
    {
#pragma GCC unroll 8
        for (int v = 0; v < kVECS; ++v)
        {
            sums[m][v] = zero();
        }
    }
    for (int64_t i = 0; i < call.group; i += 8)
    {
        unpackedFrom<M, ROWS, kVECS, 0>(sums, x + i, call.x_stride, unpacked);
        unpacked += M::kSTEPS * kVECS * kLANES;
    }
    addGroup<ROWS, kVECS>(sums, scales, scaleStride, totals, kVECS * kLANES);
}

template <typename M, int PANELS>
static void tiles(trtforge_int4_linear_args const& call, int64_t row, int64_t rows, int64_t k, float const* unpacked,
    float const* scales, int64_t scaleStride, float* totals)
{
    constexpr int kWIDTH = PANELS * kINT4_PANEL;
    int64_t m = 0;
    for (; m + kINT4_ROWS <= rows; m += kINT4_ROWS)
    {
        tile<M, kINT4_ROWS, PANELS>(call, row + m, k, unpacked, scales, scaleStride, totals + m * kWIDTH);
    }
    float* rest = totals + m * kWIDTH;
    switch (rows - m)
    {
    case 1: tile<M, 1, PANELS>(call, row + m, k, unpacked, scales, scaleStride, rest); break;
    case 2: tile<M, 2, PANELS>(call, row + m, k, unpacked, scales, scaleStride, rest); break;
    case 3: tile<M, 3, PANELS>(call, row + m, k, unpacked, scales, scaleStride, rest); break;
    case 4: tile<M, 4, PANELS>(call, row + m, k, unpacked, scales, scaleStride, rest); break;
    case 5: tile<M, 5, PANELS>(call, row + m, k, unpacked, scales, scaleStride, rest); break;
    default: break;
    }
}

//! All rows times PANELS panels, a band of rows at a time.
template <typename M, int PANELS>
static void manyRows(trtforge_int4_linear_args const& call, int64_t panel, float* scratch)
{
    constexpr int kVECS = PANELS * kPANEL_VECS;
    constexpr int kWIDTH = PANELS * kINT4_PANEL;
    int64_t const words = call.inputs / 8 * kINT4_PANEL;
    int64_t const groups = call.inputs / call.group;
    float* const totals = scratch;
    float* const unpacked = scratch + kINT4_BAND * kINT4_UNPACKED * kINT4_PANEL;
    for (int64_t row = 0; row < call.rows; row += kINT4_BAND)
    {
        int64_t const rows = call.rows - row < kINT4_BAND ? call.rows - row : kINT4_BAND;
        for (int64_t i = 0; i < rows * kWIDTH; i += kLANES)
        {
            store(totals + i, zero());
        }
        for (int64_t g = 0; g < groups; ++g)
        {
            uint32_t const* weights = call.weights + panel * words + g * call.group / 8 * kINT4_PANEL;
            float* out = unpacked;
            for (int64_t k = 0; k < call.group; k += 8)
            {
                for (int v = 0; v < kVECS; ++v)
                {
                    Words const some = loadWords(weights + v / kPANEL_VECS * words + v % kPANEL_VECS * kLANES);
                    unpackFrom<M, kVECS, 0>(some, out + v * kLANES);
                }
                weights += kINT4_PANEL;
                out += M::kSTEPS * kVECS * kLANES;
            }
            float const* scales = call.scales + (panel * groups + g) * kINT4_PANEL;
            tiles<M, PANELS>(call, row, rows, g * call.group, unpacked, scales, groups * kINT4_PANEL, totals);
        }
        for (int64_t m = 0; m < rows; ++m)
        {
            finishRow(call, totals + m * kWIDTH, row + m, panel * kINT4_PANEL, kWIDTH);
        }
    }
}

//! Floats that :int4Linear needs beside the call's own tensors.
static int64_t int4Scratch(trtforge_int4_linear_args const& call)
{
    return (kINT4_BAND + call.group) * kINT4_UNPACKED * kINT4_PANEL;
}

template <typename M>
static void int4Panels(trtforge_int4_linear_args const& call, int64_t begin, int64_t end, float* scratch)
{
    switch (call.rows)
    {
    case 1: fewRowsOver<M, 1, panelsOf(1)>(call, 0, begin, end); return;
    case 2: fewRowsOver<M, 2, panelsOf(2)>(call, 0, begin, end); return;
    case 3: fewRowsOver<M, 3, panelsOf(3)>(call, 0, begin, end); return;
    case 4: fewRowsOver<M, 4, panelsOf(4)>(call, 0, begin, end); return;
    case 5: fewRowsOver<M, 5, panelsOf(5)>(call, 0, begin, end); return;
    case 6: fewRowsOver<M, 6, panelsOf(6)>(call, 0, begin, end); return;
    default: break;
    }
    for (; begin + kINT4_UNPACKED <= end; begin += kINT4_UNPACKED)
    {
        manyRows<M, kINT4_UNPACKED>(call, begin, scratch);
    }
    for (; begin < end; ++begin)
    {
        manyRows<M, 1>(call, begin, scratch);
    }
}

//! Panels [begin, end). Inputs are float32 or, where the table says int4Pairs, bfloat16.
static void int4Linear(trtforge_int4_linear_args const& call, int64_t begin, int64_t end, float* scratch)
{
#if defined(__AVX512BF16__) && !defined(TRTFORGE_GENERIC_LANES)
    if (call.x_dtype == TRTFORGE_BFLOAT16)
    {
        int4Panels<Pairs>(call, begin, end, scratch);
        return;
    }
#endif
    int4Panels<Singles>(call, begin, end, scratch);
}

//! Rows of x as float32, for instruction sets that multiply nothing else.
static void int4Widen(trtforge_int4_linear_args const& call, float* out, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; ++row)
    {
        for (int64_t k = 0; k < call.inputs; ++k)
        {
            int64_t const at = row * call.x_stride + k;
            out[row * call.inputs + k] = call.x_dtype == TRTFORGE_BFLOAT16
                ? toFloat(static_cast<Bf16 const*>(call.x)[at])
                : toFloat(static_cast<Fp16 const*>(call.x)[at]);
        }
    }
}

} // namespace TRTFORGE_ISA_NAMESPACE
} // namespace trtforge

#endif // TRTFORGE_INT4_KERNELS_HPP
