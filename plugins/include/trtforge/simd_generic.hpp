//! \file simd_generic.hpp
//! \brief The vector type of simd.hpp through GCC vector extensions, TRTFORGE_GENERIC_LANES wide.
#ifndef TRTFORGE_SIMD_GENERIC_HPP
#define TRTFORGE_SIMD_GENERIC_HPP

#include "trtforge/numeric.hpp"

namespace trtforge
{
namespace TRTFORGE_ISA_NAMESPACE
{

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

} // namespace TRTFORGE_ISA_NAMESPACE
} // namespace trtforge

#endif // TRTFORGE_SIMD_GENERIC_HPP
