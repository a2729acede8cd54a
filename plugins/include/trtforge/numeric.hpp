//! \file numeric.hpp
//! \brief Scalar conversions between float32 and bf16, fp16 and E4M3, all round-to-nearest-even.
//!
//! Included inside a unit's own namespace (TRTFORGE_ISA_NAMESPACE), so that code compiled with wider instruction
//! sets stays in that unit. Each function is branch-free so that loops over it vectorise.
#ifndef TRTFORGE_ISA_NAMESPACE
#error "define TRTFORGE_ISA_NAMESPACE before including numeric.hpp"
#endif

#ifndef TRTFORGE_NUMERIC_HPP
#define TRTFORGE_NUMERIC_HPP

#include "trtforge/types.hpp"

#define TRTFORGE_INLINE static inline __attribute__((always_inline))

namespace trtforge
{
namespace TRTFORGE_ISA_NAMESPACE
{

TRTFORGE_INLINE uint32_t bitsOf(float x)
{
    uint32_t u;
    __builtin_memcpy(&u, &x, 4);
    return u;
}

TRTFORGE_INLINE float floatOf(uint32_t u)
{
    float x;
    __builtin_memcpy(&x, &u, 4);
    return x;
}

TRTFORGE_INLINE float toFloat(float x)
{
    return x;
}

TRTFORGE_INLINE float toFloat(Bf16 x)
{
    return floatOf(static_cast<uint32_t>(x.bits) << 16);
}

TRTFORGE_INLINE float toFloat(Fp16 x)
{
    uint32_t const sign = (x.bits & 0x8000U) << 16;
    uint32_t const magnitude = (x.bits & 0x7fffU) << 13;
    uint32_t const exponent = x.bits & 0x7c00U;
    // Subnormals: put the mantissa under an exponent of 2^-14 and take that power away again (exact).
    float const small = floatOf(magnitude + (113U << 23)) - floatOf(113U << 23);
    uint32_t const bias = exponent == 0x7c00U ? (224U << 23) : (112U << 23);
    return floatOf(sign | (exponent == 0 ? bitsOf(small) : magnitude + bias));
}

TRTFORGE_INLINE float toFloat(E4m3 x)
{
    uint32_t const sign = (x.bits & 0x80U) << 24;
    uint32_t const magnitude = (x.bits & 0x7fU) << 20;
    // Same trick as above: smallest normal 2^-6.
    float const small = floatOf(magnitude + (121U << 23)) - floatOf(121U << 23);
    uint32_t const normal = magnitude + (120U << 23);
    uint32_t const finite = (x.bits & 0x78U) == 0 ? bitsOf(small) : normal;
    return floatOf(sign | ((x.bits & 0x7fU) == 0x7fU ? 0x7fc00000U : finite));
}

TRTFORGE_INLINE Bf16 bf16From(float x)
{
    uint32_t const u = bitsOf(x);
    uint32_t const rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
    // All NaNs become torch's canonical one.
    return Bf16{static_cast<uint16_t>((u & 0x7fffffffU) > 0x7f800000U ? 0x7fc0U : rounded)};
}

TRTFORGE_INLINE Fp16 fp16From(float x)
{
    uint32_t const u = bitsOf(x);
    uint32_t const sign = (u >> 16) & 0x8000U;
    uint32_t const m = u & 0x7fffffffU;
    // Subnormal results: adding 0.5 * 2^k aligns the mantissa to units of 2^-24 and rounds to even.
    uint32_t const small = bitsOf(floatOf(m) + floatOf(126U << 23)) - (126U << 23);
    uint32_t const normal = (m + 0xfffU + ((m >> 13) & 1U) - (112U << 23)) >> 13;
    uint32_t const finite = m < (113U << 23) ? small : normal;
    uint32_t const clipped = m >= 0x477ff000U ? 0x7c00U : finite; // 65520 and above round to infinity
    uint32_t const nan = 0x7e00U | ((m >> 13) & 0x3ffU);
    return Fp16{static_cast<uint16_t>(sign | (m > 0x7f800000U ? nan : clipped))};
}

//! Saturating: values beyond ±448 (infinities too) become ±448; NaN stays NaN.
TRTFORGE_INLINE E4m3 e4m3From(float x)
{
    constexpr uint32_t kMAX = 0x43e00000U; // 448
    uint32_t const u = bitsOf(x);
    uint32_t const sign = (u >> 24) & 0x80U;
    uint32_t const m = u & 0x7fffffffU;
    uint32_t const clipped = m > kMAX ? kMAX : m;
    // Subnormal results: 2^14 has units of 2^-9, the smallest E4M3 value.
    uint32_t const small = bitsOf(floatOf(clipped) + 16384.0F) - (141U << 23);
    uint32_t const normal = (clipped + 0x7ffffU + ((clipped >> 20) & 1U) - (120U << 23)) >> 20;
    uint32_t const finite = clipped < (121U << 23) ? small : normal;
    return E4m3{static_cast<uint8_t>(sign | (m > 0x7f800000U ? 0x7fU : finite))};
}

//! toFloat(e4m3From(x)) in 32-bit steps only, so that a loop over it becomes vector code.
TRTFORGE_INLINE float e4m3Rounded(float x)
{
    constexpr uint32_t kMAX = 0x43e00000U; // 448
    uint32_t const u = bitsOf(x);
    uint32_t const m = u & 0x7fffffffU;
    uint32_t const clipped = m > kMAX ? kMAX : m;
    uint32_t const small = bitsOf((floatOf(clipped) + 16384.0F) - 16384.0F);
    uint32_t const normal = (clipped + 0x7ffffU + ((clipped >> 20) & 1U)) & 0xfff00000U;
    // Masks, not choices: a choice becomes a branch around the addition, and a branch is no vector code.
    uint32_t const subnormal = 0U - static_cast<uint32_t>(clipped < (121U << 23));
    uint32_t const nan = (0U - static_cast<uint32_t>(m > 0x7f800000U)) & 0x7fc00000U;
    return floatOf((u & 0x80000000U) | (small & subnormal) | (normal & ~subnormal) | nan);
}

} // namespace TRTFORGE_ISA_NAMESPACE
} // namespace trtforge

#endif // TRTFORGE_NUMERIC_HPP
