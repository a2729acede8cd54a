//! \file simd.hpp
//! \brief One vector type per translation unit: AVX-512, AVX2+FMA+F16C, or GCC vector extensions of any width.
//!
//! The kernels are written once against this small set of operations. Two rules make results reproducible inside
//! one instruction set: fused multiply-add is always explicit (units are compiled with -ffp-contract=off), and sums
//! over lanes always take the tree of reduce4/sumLanes, whichever kernel asks.
#ifndef TRTFORGE_SIMD_HPP
#define TRTFORGE_SIMD_HPP

#include "trtforge/numeric.hpp"

#if defined(TRTFORGE_GENERIC_LANES)
#include "trtforge/simd_generic.hpp"
#elif defined(__AVX512F__)
#include "trtforge/simd_avx512.hpp"
#elif defined(__AVX2__)
#include "trtforge/simd_avx2.hpp"
#else
#error "this unit needs AVX-512, AVX2 or TRTFORGE_GENERIC_LANES"
#endif

namespace trtforge
{
namespace TRTFORGE_ISA_NAMESPACE
{

// --- operations that follow from the ones above ---------------------------------------------------------------

//! Keeps a loaded vector in a register: without it the compiler reads memory again for every use.
TRTFORGE_INLINE Vec pinned(Vec a)
{
#if !defined(TRTFORGE_GENERIC_LANES)
    __asm__("" : "+v"(a.v));
#endif
    return a;
}

//! How many vectors of a type are best read together, in an order of their own: a group of kPARTS * kLANES elements.
//! Splitting a group costs fewer operations than widening it in order; whoever multiplies its vectors with something
//! else brings that into the same order (:groupElement).
template <typename T>
struct Parts
{
    static constexpr int value = 1;
};
#if !defined(TRTFORGE_GENERIC_LANES)
template <>
struct Parts<Bf16>
{
    static constexpr int value = 2;
};
#if defined(__AVX512VBMI__)
template <>
struct Parts<E4m3>
{
    static constexpr int value = 4;
};
#endif
#endif

//! Vector PART of a group: even and odd elements of bfloat16, neighbouring vectors of everything else.
template <int PART, typename T>
TRTFORGE_INLINE Vec loadPart(T const* p)
{
    return load(p + PART * kLANES);
}
#if !defined(TRTFORGE_GENERIC_LANES)
template <int PART>
TRTFORGE_INLINE Vec loadPart(Bf16 const* p)
{
#if defined(__AVX512F__)
    __m512i const x = _mm512_loadu_si512(p);
    __m512i const part = PART == 0 ? _mm512_slli_epi32(x, 16) : _mm512_and_si512(x, _mm512_set1_epi32(-65536));
    return Vec{_mm512_castsi512_ps(part)};
#else
    __m256i const x = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(p));
    __m256i const part = PART == 0 ? _mm256_slli_epi32(x, 16) : _mm256_and_si256(x, _mm256_set1_epi32(-65536));
    return Vec{_mm256_castsi256_ps(part)};
#endif
}
#endif

//! All vectors of a group.
template <typename T>
TRTFORGE_INLINE void loadGroup(T const* p, Vec (&out)[1])
{
    out[0] = load(p);
}
template <typename T>
TRTFORGE_INLINE void loadGroup(T const* p, Vec (&out)[2])
{
    out[0] = loadPart<0>(p);
    out[1] = loadPart<1>(p);
}
#if defined(__AVX512VBMI__) && !defined(TRTFORGE_GENERIC_LANES)
TRTFORGE_INLINE void loadGroup(E4m3 const* p, Vec (&out)[4])
{
    loadE4m3Group(p, out);
}
#endif

//! Which element of its group stands in a lane of a part.
TRTFORGE_INLINE int groupElement(int parts, int part, int lane)
{
    if (parts == 4)
    {
        return lane / 4 * 16 + part / 2 * 8 + lane % 4 * 2 + part % 2;
    }
    return parts == 2 ? 2 * lane + part : lane;
}

//! Two neighbouring vectors; E4M3 has an overload above where that is cheaper.
template <typename T>
TRTFORGE_INLINE void loadPair(T const* p, Vec& a, Vec& b)
{
    a = load(p);
    b = load(p + kLANES);
}

TRTFORGE_INLINE Vec zero()
{
    return set1(0.0F);
}

TRTFORGE_INLINE void store(Bf16* p, Vec a)
{
    float buffer[kLANES];
    store(buffer, a);
    for (int i = 0; i < kLANES; ++i)
    {
        p[i] = bf16From(buffer[i]);
    }
}

TRTFORGE_INLINE void store(E4m3* p, Vec a)
{
    float buffer[kLANES];
    store(buffer, a);
    for (int i = 0; i < kLANES; ++i)
    {
        p[i] = e4m3From(buffer[i]);
    }
}

//! First count lanes from p (0 < count <= kLANES), the rest zero.
template <typename T>
TRTFORGE_INLINE Vec loadSome(T const* p, int64_t count)
{
    float buffer[kLANES] = {};
    for (int64_t i = 0; i < count; ++i)
    {
        buffer[i] = toFloat(p[i]);
    }
    return load(buffer);
}

TRTFORGE_INLINE void storeOne(float* p, float x)
{
    *p = x;
}
TRTFORGE_INLINE void storeOne(Bf16* p, float x)
{
    *p = bf16From(x);
}
TRTFORGE_INLINE void storeOne(Fp16* p, float x)
{
    *p = fp16From(x);
}
TRTFORGE_INLINE void storeOne(E4m3* p, float x)
{
    *p = e4m3From(x);
}

template <typename T>
TRTFORGE_INLINE void storeSome(T* p, Vec a, int64_t count)
{
    float buffer[kLANES];
    store(buffer, a);
    for (int64_t i = 0; i < count; ++i)
    {
        storeOne(p + i, buffer[i]);
    }
}

//! 2^a. Below -126 the result is exactly 0 (so that a masked score weighs nothing); relative error about 1e-7
//! (minimax polynomial of Cephes' exp2f on [-0.5, 0.5]).
TRTFORGE_INLINE Vec exp2(Vec a)
{
    // min and max give their second operand when one is NaN: this order lets NaN through.
    Vec const clipped = min(set1(127.0F), max(set1(-126.0F), a));
    Vec const n = round(clipped);
    Vec const f = sub(clipped, n);
    Vec p = set1(1.535336188319500e-4F);
    p = fma(p, f, set1(1.339887440266574e-3F));
    p = fma(p, f, set1(9.618437357674640e-3F));
    p = fma(p, f, set1(5.550332471162809e-2F));
    p = fma(p, f, set1(2.402264791363012e-1F));
    p = fma(p, f, set1(6.931472028550421e-1F));
    p = fma(p, f, set1(1.0F));
    return selectLess(a, set1(-126.0F), zero(), mul(p, powerOfTwo(n)));
}

constexpr float kLOG2E = 1.44269504088896340736F;

//! exp2 of one number, with the same bits as a lane of the vector.
TRTFORGE_INLINE float exp2One(float a)
{
    float buffer[kLANES];
    store(buffer, exp2(set1(a)));
    return buffer[0];
}

//! tanh(a) = 1 - 2 / (e^2a + 1); absolute error about 1e-7.
TRTFORGE_INLINE Vec tanh(Vec a)
{
    Vec const e = exp2(mul(a, set1(2.0F * kLOG2E)));
    return sub(set1(1.0F), div(set1(2.0F), add(e, set1(1.0F))));
}

} // namespace TRTFORGE_ISA_NAMESPACE
} // namespace trtforge

#endif // TRTFORGE_SIMD_HPP
