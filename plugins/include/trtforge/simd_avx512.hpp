//! \file simd_avx512.hpp
//! \brief The vector type of simd.hpp on AVX-512 F/BW/DQ/VL.
#ifndef TRTFORGE_SIMD_AVX512_HPP
#define TRTFORGE_SIMD_AVX512_HPP

#include "trtforge/numeric.hpp"

#include <immintrin.h>

namespace trtforge
{
namespace TRTFORGE_ISA_NAMESPACE
{

constexpr int kLANES = 16;
constexpr int kREGISTER_ROWS = 6;
constexpr float kE4M3_UNIT = 1.0F / 256.0F;

struct Vec
{
    __m512 v;
};

TRTFORGE_INLINE Vec set1(float x)
{
    return Vec{_mm512_set1_ps(x)};
}
TRTFORGE_INLINE Vec load(float const* p)
{
    return Vec{_mm512_loadu_ps(p)};
}
TRTFORGE_INLINE void store(float* p, Vec a)
{
    _mm512_storeu_ps(p, a.v);
}
TRTFORGE_INLINE Vec load(Bf16 const* p)
{
    __m512i const u = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<__m256i const*>(p)));
    return Vec{_mm512_castsi512_ps(_mm512_slli_epi32(u, 16))};
}
TRTFORGE_INLINE Vec load(Fp16 const* p)
{
    return Vec{_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<__m256i const*>(p)))};
}
//! E4M3 is an fp16 with a shorter exponent: shifting its bits under fp16's gives value * 2^-8, subnormals included.
//! The byte is sign-extended, so that after the shift bit 15 is the sign and only bit 14 has to be cleared.
TRTFORGE_INLINE __m256i e4m3Halves(__m128i bytes)
{
    __m256i const w = _mm256_cvtepi8_epi16(bytes);
    __m256i const half
        = _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
    // NaN is 0x7f under the sign bit.
    __m256i const magnitude = _mm256_and_si256(half, _mm256_set1_epi16(0x3f80));
    __m256i const nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80));
    return _mm256_or_si256(half, nan);
}
TRTFORGE_INLINE Vec load(E4m3 const* p)
{
    return Vec{_mm512_cvtph_ps(e4m3Halves(_mm_loadu_si128(reinterpret_cast<__m128i const*>(p))))};
}
#if defined(__AVX512VBMI__)
//! The upper or lower bytes of the bfloat16 values value * 2^-8 of the 128 magnitudes of E4M3, NaN included.
struct E4m3Bytes
{
    alignas(64) unsigned char high[128];
    alignas(64) unsigned char low[128];
};
constexpr E4m3Bytes e4m3Bytes()
{
    E4m3Bytes table{};
    for (int x = 0; x < 128; ++x)
    {
        int exponent = x >> 3;
        int mantissa = x & 7;
        int bits = 0;
        if (x == 127)
        {
            bits = 0x7fc0;
        }
        else if (exponent > 0)
        {
            bits = ((exponent - 7 - 8 + 127) << 7) | (mantissa << 4);
        }
        else if (mantissa > 0)
        {
            // mantissa * 2^-9: shift its leading bit out
            exponent = 1 - 7 - 8 + 127;
            while (mantissa < 8)
            {
                mantissa <<= 1;
                --exponent;
            }
            bits = (exponent << 7) | ((mantissa & 7) << 4);
        }
        table.high[x] = static_cast<unsigned char>(bits >> 8);
        table.low[x] = static_cast<unsigned char>(bits & 0xff);
    }
    return table;
}
alignas(64) static constexpr E4m3Bytes kE4M3_BYTES = e4m3Bytes();

//! Sixty-four values as four vectors, in the order of groupElement: two table look-ups, the sign, and an
//! interleaving inside 128-bit lanes that leaves pairs of bfloat16 values.
TRTFORGE_INLINE void loadE4m3Group(E4m3 const* p, Vec (&out)[4])
{
    __m512i const x = _mm512_loadu_si512(p);
    __m512i const magnitude = _mm512_permutex2var_epi8(_mm512_load_si512(kE4M3_BYTES.high), x,
        _mm512_load_si512(kE4M3_BYTES.high + 64));
    __m512i const low = _mm512_permutex2var_epi8(_mm512_load_si512(kE4M3_BYTES.low), x,
        _mm512_load_si512(kE4M3_BYTES.low + 64));
    constexpr int kOR_OF_MASKED = 0xf8; // first | (second & third)
    __m512i const high
        = _mm512_ternarylogic_epi32(magnitude, x, _mm512_set1_epi8(static_cast<char>(0x80)), kOR_OF_MASKED);
    __m512i const first = _mm512_unpacklo_epi8(low, high);
    __m512i const second = _mm512_unpackhi_epi8(low, high);
    __m512i const upper = _mm512_set1_epi32(-65536);
    out[0].v = _mm512_castsi512_ps(_mm512_slli_epi32(first, 16));
    out[1].v = _mm512_castsi512_ps(_mm512_and_si512(first, upper));
    out[2].v = _mm512_castsi512_ps(_mm512_slli_epi32(second, 16));
    out[3].v = _mm512_castsi512_ps(_mm512_and_si512(second, upper));
}
#endif
TRTFORGE_INLINE Vec widen(__m256 x)
{
    return Vec{_mm512_zextps256_ps512(x)};
}
TRTFORGE_INLINE Vec loadHalf(float const* p)
{
    return widen(_mm256_loadu_ps(p));
}
TRTFORGE_INLINE Vec loadHalf(Bf16 const* p)
{
    __m256i const u = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<__m128i const*>(p)));
    return widen(_mm256_castsi256_ps(_mm256_slli_epi32(u, 16)));
}
TRTFORGE_INLINE Vec loadHalf(Fp16 const* p)
{
    return widen(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<__m128i const*>(p))));
}
TRTFORGE_INLINE Vec loadHalf(E4m3 const* p)
{
    __m128i const bytes = _mm_loadl_epi64(reinterpret_cast<__m128i const*>(p));
    return widen(_mm256_cvtph_ps(_mm256_castsi256_si128(e4m3Halves(bytes))));
}
TRTFORGE_INLINE void store(Fp16* p, Vec a)
{
    __m256i const h = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), h);
}
TRTFORGE_INLINE Vec add(Vec a, Vec b)
{
    return Vec{_mm512_add_ps(a.v, b.v)};
}
TRTFORGE_INLINE Vec sub(Vec a, Vec b)
{
    return Vec{_mm512_sub_ps(a.v, b.v)};
}
TRTFORGE_INLINE Vec mul(Vec a, Vec b)
{
    return Vec{_mm512_mul_ps(a.v, b.v)};
}
TRTFORGE_INLINE Vec div(Vec a, Vec b)
{
    return Vec{_mm512_div_ps(a.v, b.v)};
}
TRTFORGE_INLINE Vec fma(Vec a, Vec b, Vec c)
{
    return Vec{_mm512_fmadd_ps(a.v, b.v, c.v)};
}
TRTFORGE_INLINE Vec max(Vec a, Vec b)
{
    return Vec{_mm512_max_ps(a.v, b.v)};
}
TRTFORGE_INLINE Vec min(Vec a, Vec b)
{
    return Vec{_mm512_min_ps(a.v, b.v)};
}
TRTFORGE_INLINE Vec abs(Vec a)
{
    return Vec{_mm512_abs_ps(a.v)};
}
TRTFORGE_INLINE Vec round(Vec a)
{
    return Vec{_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
TRTFORGE_INLINE Vec powerOfTwo(Vec a)
{
    __m512i const n = _mm512_cvtps_epi32(a.v);
    return Vec{_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23))};
}
TRTFORGE_INLINE Vec selectLess(Vec a, Vec b, Vec x, Vec y)
{
    return Vec{_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
TRTFORGE_INLINE __m256 foldHalves(Vec a)
{
    return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}
TRTFORGE_INLINE void reduce4(Vec a, Vec b, Vec c, Vec d, float* out)
{
    __m256 const ab = _mm256_hadd_ps(foldHalves(a), foldHalves(b));
    __m256 const cd = _mm256_hadd_ps(foldHalves(c), foldHalves(d));
    __m256 const abcd = _mm256_hadd_ps(ab, cd);
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
}
TRTFORGE_INLINE float sumLanes(Vec a)
{
    float out[4];
    reduce4(a, a, a, a, out);
    return out[0];
}
TRTFORGE_INLINE float maxLanes(Vec a)
{
    return _mm512_reduce_max_ps(a.v);
}

} // namespace TRTFORGE_ISA_NAMESPACE
} // namespace trtforge

#endif // TRTFORGE_SIMD_AVX512_HPP
