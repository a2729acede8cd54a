//! \file simd_avx2.hpp
//! \brief The vector type of simd.hpp on AVX2 + FMA + F16C.
#ifndef TRTFORGE_SIMD_AVX2_HPP
#define TRTFORGE_SIMD_AVX2_HPP

#include "trtforge/numeric.hpp"

#include <immintrin.h>

namespace trtforge
{
namespace TRTFORGE_ISA_NAMESPACE
{

constexpr int kLANES = 8;
constexpr int kREGISTER_ROWS = 4;
constexpr float kE4M3_UNIT = 1.0F / 256.0F;

struct Vec
{
    __m256 v;
};

TRTFORGE_INLINE Vec set1(float x)
{
    return Vec{_mm256_set1_ps(x)};
}
TRTFORGE_INLINE Vec load(float const* p)
{
    return Vec{_mm256_loadu_ps(p)};
}
TRTFORGE_INLINE void store(float* p, Vec a)
{
    _mm256_storeu_ps(p, a.v);
}
TRTFORGE_INLINE Vec load(Bf16 const* p)
{
    __m256i const u = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<__m128i const*>(p)));
    return Vec{_mm256_castsi256_ps(_mm256_slli_epi32(u, 16))};
}
TRTFORGE_INLINE Vec load(Fp16 const* p)
{
    return Vec{_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<__m128i const*>(p)))};
}
//! E4M3 is an fp16 with a shorter exponent: shifting its bits under fp16's gives value * 2^-8, subnormals included.
//! The byte is sign-extended, so that after the shift bit 15 is the sign and only bit 14 has to be cleared.
TRTFORGE_INLINE Vec load(E4m3 const* p)
{
    __m128i const w = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<__m128i const*>(p)));
    __m128i const half = _mm_and_si128(_mm_slli_epi16(w, 7), _mm_set1_epi16(static_cast<short>(0xbfff)));
    __m128i const magnitude = _mm_and_si128(half, _mm_set1_epi16(0x3f80));
    __m128i const nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x3f80));
    return Vec{_mm256_cvtph_ps(_mm_or_si128(half, nan))};
}
//! Two vectors at once: half the integer work per element.
TRTFORGE_INLINE void loadPair(E4m3 const* p, Vec& a, Vec& b)
{
    __m128i const bytes = _mm_loadu_si128(reinterpret_cast<__m128i const*>(p));
    __m256i const w = _mm256_cvtepi8_epi16(bytes);
    __m256i const half
        = _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
    // NaN is 0x7f under the sign bit.
    __m256i const magnitude = _mm256_and_si256(half, _mm256_set1_epi16(0x3f80));
    __m256i const nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80));
    __m256i const x = _mm256_or_si256(half, nan);
    a.v = _mm256_cvtph_ps(_mm256_castsi256_si128(x));
    b.v = _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1));
}
template <typename T>
TRTFORGE_INLINE Vec loadHalf(T const* p) // head sizes are multiples of 8: never reached with 8 lanes
{
    return load(p);
}
TRTFORGE_INLINE void store(Fp16* p, Vec a)
{
    __m128i const h = _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), h);
}
TRTFORGE_INLINE Vec add(Vec a, Vec b)
{
    return Vec{_mm256_add_ps(a.v, b.v)};
}
TRTFORGE_INLINE Vec sub(Vec a, Vec b)
{
    return Vec{_mm256_sub_ps(a.v, b.v)};
}
TRTFORGE_INLINE Vec mul(Vec a, Vec b)
{
    return Vec{_mm256_mul_ps(a.v, b.v)};
}
TRTFORGE_INLINE Vec div(Vec a, Vec b)
{
    return Vec{_mm256_div_ps(a.v, b.v)};
}
TRTFORGE_INLINE Vec fma(Vec a, Vec b, Vec c)
{
    return Vec{_mm256_fmadd_ps(a.v, b.v, c.v)};
}
TRTFORGE_INLINE Vec max(Vec a, Vec b)
{
    return Vec{_mm256_max_ps(a.v, b.v)};
}
TRTFORGE_INLINE Vec min(Vec a, Vec b)
{
    return Vec{_mm256_min_ps(a.v, b.v)};
}
TRTFORGE_INLINE Vec abs(Vec a)
{
    return Vec{_mm256_and_ps(a.v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)))};
}
TRTFORGE_INLINE Vec round(Vec a)
{
    return Vec{_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
TRTFORGE_INLINE Vec powerOfTwo(Vec a)
{
    __m256i const n = _mm256_cvtps_epi32(a.v);
    return Vec{_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23))};
}
TRTFORGE_INLINE Vec selectLess(Vec a, Vec b, Vec x, Vec y)
{
    return Vec{_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
TRTFORGE_INLINE void reduce4(Vec a, Vec b, Vec c, Vec d, float* out)
{
    __m256 const ab = _mm256_hadd_ps(a.v, b.v);
    __m256 const cd = _mm256_hadd_ps(c.v, d.v);
    __m256 const abcd = _mm256_hadd_ps(ab, cd);
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
}
TRTFORGE_INLINE float sumLanes(Vec a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}
TRTFORGE_INLINE float maxLanes(Vec a)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    s = _mm_max_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}

} // namespace TRTFORGE_ISA_NAMESPACE
} // namespace trtforge

#endif // TRTFORGE_SIMD_AVX2_HPP
