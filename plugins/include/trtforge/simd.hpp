//! \file simd.hpp
//! \brief One vector type per translation unit: AVX-512, AVX2+FMA+F16C, or GCC vector extensions of any width.
//!
//! The kernels are written once against this small set of operations. Two rules make results reproducible inside
//! one instruction set: fused multiply-add is always explicit (units are compiled with -ffp-contract=off), and sums
//! over lanes always take the tree of reduce4/sumLanes, whichever kernel asks.
#ifndef TRTFORGE_SIMD_HPP
#define TRTFORGE_SIMD_HPP

#include "trtforge/numeric.hpp"

#if !defined(TRTFORGE_GENERIC_LANES)
#include <immintrin.h>
#endif

namespace trtforge
{
namespace TRTFORGE_ISA_NAMESPACE
{

#if defined(TRTFORGE_GENERIC_LANES)

constexpr int kLANES = TRTFORGE_GENERIC_LANES;
//! Query rows per register tile: rows x 4 keys accumulators must fit the register file.
constexpr int kREGISTER_ROWS = 4;
//! A loaded E4M3 vector holds value * kE4M3_UNIT.
constexpr float kE4M3_UNIT = 1.0F;

typedef float FloatV __attribute__((vector_size(kLANES * 4)));
typedef int32_t IntV __attribute__((vector_size(kLANES * 4)));

struct Vec
{
    FloatV v;
};

TRTFORGE_INLINE Vec set1(float x)
{
    Vec r;
    for (int i = 0; i < kLANES; ++i)
    {
        r.v[i] = x;
    }
    return r;
}
TRTFORGE_INLINE Vec load(float const* p)
{
    Vec r;
    __builtin_memcpy(&r.v, p, sizeof(r.v));
    return r;
}
TRTFORGE_INLINE void store(float* p, Vec a)
{
    __builtin_memcpy(p, &a.v, sizeof(a.v));
}
template <typename T>
TRTFORGE_INLINE Vec loadConverted(T const* p)
{
    float buffer[kLANES];
    for (int i = 0; i < kLANES; ++i)
    {
        buffer[i] = toFloat(p[i]);
    }
    return load(buffer);
}
TRTFORGE_INLINE Vec load(Bf16 const* p)
{
    return loadConverted(p);
}
TRTFORGE_INLINE Vec load(Fp16 const* p)
{
    return loadConverted(p);
}
TRTFORGE_INLINE Vec load(E4m3 const* p)
{
    return loadConverted(p);
}
template <typename T>
TRTFORGE_INLINE Vec loadHalf(T const* p)
{
    float buffer[kLANES] = {};
    for (int i = 0; i < kLANES / 2; ++i)
    {
        buffer[i] = toFloat(p[i]);
    }
    return load(buffer);
}
TRTFORGE_INLINE void store(Fp16* p, Vec a)
{
    float buffer[kLANES];
    store(buffer, a);
    for (int i = 0; i < kLANES; ++i)
    {
        p[i] = fp16From(buffer[i]);
    }
}
TRTFORGE_INLINE Vec add(Vec a, Vec b)
{
    return Vec{a.v + b.v};
}
TRTFORGE_INLINE Vec sub(Vec a, Vec b)
{
    return Vec{a.v - b.v};
}
TRTFORGE_INLINE Vec mul(Vec a, Vec b)
{
    return Vec{a.v * b.v};
}
TRTFORGE_INLINE Vec div(Vec a, Vec b)
{
    return Vec{a.v / b.v};
}
TRTFORGE_INLINE Vec fma(Vec a, Vec b, Vec c)
{
    return Vec{a.v * b.v + c.v};
}
TRTFORGE_INLINE Vec max(Vec a, Vec b)
{
    return Vec{a.v > b.v ? a.v : b.v};
}
TRTFORGE_INLINE Vec min(Vec a, Vec b)
{
    return Vec{a.v < b.v ? a.v : b.v};
}
TRTFORGE_INLINE Vec abs(Vec a)
{
    return Vec{reinterpret_cast<FloatV>(reinterpret_cast<IntV>(a.v) & 0x7fffffff)};
}
//! Nearest integer, ties to even, for |a| < 2^22.
TRTFORGE_INLINE Vec round(Vec a)
{
    FloatV const magic = set1(12582912.0F).v;
    IntV const sign = reinterpret_cast<IntV>(a.v) & static_cast<int32_t>(0x80000000); // -0.2 gives -0
    return Vec{reinterpret_cast<FloatV>(reinterpret_cast<IntV>((a.v + magic) - magic) | sign)};
}
//! 2^a for integral a in [-126, 127].
TRTFORGE_INLINE Vec powerOfTwo(Vec a)
{
    IntV const n = __builtin_convertvector(a.v, IntV);
    return Vec{reinterpret_cast<FloatV>((n + 127) << 23)};
}
//! condition a < b ? x : y, lane by lane.
TRTFORGE_INLINE Vec selectLess(Vec a, Vec b, Vec x, Vec y)
{
    return Vec{a.v < b.v ? x.v : y.v};
}
TRTFORGE_INLINE float sumLanes(Vec a)
{
    float buffer[kLANES];
    store(buffer, a);
    for (int n = kLANES; n > 1; n /= 2)
    {
        for (int i = 0; i < n / 2; ++i)
        {
            buffer[i] = buffer[2 * i] + buffer[2 * i + 1];
        }
    }
    return buffer[0];
}
TRTFORGE_INLINE float maxLanes(Vec a)
{
    float m = a.v[0];
    for (int i = 1; i < kLANES; ++i)
    {
        m = a.v[i] > m ? a.v[i] : m;
    }
    return m;
}
//! out[0..4) = lane sums of a, b, c, d.
TRTFORGE_INLINE void reduce4(Vec a, Vec b, Vec c, Vec d, float* out)
{
#if TRTFORGE_GENERIC_LANES == 4
    IntV const even = {0, 2, 4, 6};
    IntV const odd = {1, 3, 5, 7};
    FloatV const ab = __builtin_shuffle(a.v, b.v, even) + __builtin_shuffle(a.v, b.v, odd);
    FloatV const cd = __builtin_shuffle(c.v, d.v, even) + __builtin_shuffle(c.v, d.v, odd);
    FloatV const sums = __builtin_shuffle(ab, cd, even) + __builtin_shuffle(ab, cd, odd);
    __builtin_memcpy(out, &sums, sizeof(sums));
#else
    out[0] = sumLanes(a);
    out[1] = sumLanes(b);
    out[2] = sumLanes(c);
    out[3] = sumLanes(d);
#endif
}

#elif defined(__AVX512F__)

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

#elif defined(__AVX2__)

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

#else
#error "this unit needs AVX-512, AVX2 or TRTFORGE_GENERIC_LANES"
#endif

// --- operations that follow from the ones above ---------------------------------------------------------------

//! Keeps a loaded vector in a register: without it the compiler reads memory again for every use.
TRTFORGE_INLINE Vec pinned(Vec a)
{
#if !defined(TRTFORGE_GENERIC_LANES)
    __asm__("" : "+v"(a.v));
#endif
    return a;
}

//! One half of 2 * kLANES neighbouring elements: the first and the second vector, or (bfloat16 with AVX) the even and
//! the odd elements. Splitting costs one operation a vector where widening in order costs two; whoever multiplies
//! parts with something else brings that into the same order.
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
