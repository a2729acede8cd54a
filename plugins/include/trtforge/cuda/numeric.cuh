//! \file numeric.cuh
//! \brief Conversions between float32 and the stored types, bit for bit those of the host library's numeric.hpp.
#ifndef TRTFORGE_CUDA_NUMERIC_CUH
#define TRTFORGE_CUDA_NUMERIC_CUH

#include "trtforge/cuda/platform.cuh"

namespace trtforge
{
namespace cuda
{

template <typename T>
constexpr bool kIS_BF16 = false;
template <>
constexpr bool kIS_BF16<Bf16> = true;

TF_DEVICE float widen(float x)
{
    return x;
}

TF_DEVICE float widen(Bf16 x)
{
    return asFloat(static_cast<uint32_t>(x.bits) << 16);
}

TF_DEVICE float widen(Fp16 x)
{
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(x.bits));
#else
    uint32_t const sign = (x.bits & 0x8000U) << 16;
    uint32_t const magnitude = (x.bits & 0x7fffU) << 13;
    uint32_t const exponent = x.bits & 0x7c00U;
    float const small = asFloat(magnitude + (113U << 23)) - asFloat(113U << 23);
    uint32_t const bias = exponent == 0x7c00U ? (224U << 23) : (112U << 23);
    return asFloat(sign | (exponent == 0 ? asBits(small) : magnitude + bias));
#endif
}

TF_DEVICE float widen(E4m3 x)
{
    uint32_t const sign = (x.bits & 0x80U) << 24;
    uint32_t const magnitude = (x.bits & 0x7fU) << 20;
    float const small = asFloat(magnitude + (121U << 23)) - asFloat(121U << 23);
    uint32_t const finite = (x.bits & 0x78U) == 0 ? asBits(small) : magnitude + (120U << 23);
    return asFloat(sign | ((x.bits & 0x7fU) == 0x7fU ? 0x7fc00000U : finite));
}

//! Rounds to nearest, ties to even.
template <typename T>
TF_DEVICE T narrow(float x);

template <>
TF_DEVICE float narrow<float>(float x)
{
    return x;
}

template <>
TF_DEVICE Bf16 narrow<Bf16>(float x)
{
    uint32_t const u = asBits(x);
    uint32_t const rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
    return Bf16{static_cast<uint16_t>((u & 0x7fffffffU) > 0x7f800000U ? 0x7fc0U : rounded)};
}

template <>
TF_DEVICE Fp16 narrow<Fp16>(float x)
{
    uint32_t const u = asBits(x);
    uint32_t const sign = (u >> 16) & 0x8000U;
    uint32_t const m = u & 0x7fffffffU;
    uint32_t const small = asBits(asFloat(m) + asFloat(126U << 23)) - (126U << 23);
    uint32_t const normal = (m + 0xfffU + ((m >> 13) & 1U) - (112U << 23)) >> 13;
    uint32_t const finite = m < (113U << 23) ? small : normal;
    uint32_t const clipped = m >= 0x477ff000U ? 0x7c00U : finite;
    uint32_t const nan = 0x7e00U | ((m >> 13) & 0x3ffU);
    return Fp16{static_cast<uint16_t>(sign | (m > 0x7f800000U ? nan : clipped))};
}

//! Saturating at ±448; NaN stays NaN.
template <>
TF_DEVICE E4m3 narrow<E4m3>(float x)
{
    constexpr uint32_t kMAX = 0x43e00000U; // 448
    uint32_t const u = asBits(x);
    uint32_t const sign = (u >> 24) & 0x80U;
    uint32_t const m = u & 0x7fffffffU;
    uint32_t const clipped = m > kMAX ? kMAX : m;
    uint32_t const small = asBits(asFloat(clipped) + 16384.0F) - (141U << 23);
    uint32_t const normal = (clipped + 0x7ffffU + ((clipped >> 20) & 1U) - (120U << 23)) >> 20;
    uint32_t const finite = clipped < (121U << 23) ? small : normal;
    return E4m3{static_cast<uint8_t>(sign | (m > 0x7f800000U ? 0x7fU : finite))};
}

//! A float tensor element of a dtype that is known only at run time.
TF_DEVICE float loadElement(void const* base, int64_t index, int32_t dtype)
{
    if (dtype == TRTFORGE_FLOAT32)
    {
        return static_cast<float const*>(base)[index];
    }
    return dtype == TRTFORGE_BFLOAT16 ? widen(static_cast<Bf16 const*>(base)[index])
                                      : widen(static_cast<Fp16 const*>(base)[index]);
}

//! Two neighbouring values of a fragment register; the first lies in the low half.
template <typename T>
TF_DEVICE uint32_t packPair(float low, float high)
{
#if defined(__CUDA_ARCH__)
    uint32_t packed;
    if constexpr (kIS_BF16<T>)
    {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    }
    else
    {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    }
    return packed;
#else
    return static_cast<uint32_t>(narrow<T>(low).bits) | static_cast<uint32_t>(narrow<T>(high).bits) << 16;
#endif
}

//! Two E4M3 values (low byte first) as two values of T; exact.
template <typename T>
TF_DEVICE uint32_t widenPair(uint32_t two)
{
#if defined(__CUDA_ARCH__)
    __half2_raw const halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two & 0xffffU), __NV_E4M3);
    if constexpr (kIS_BF16<T>)
    {
        return packPair<T>(__half2float(__ushort_as_half(halves.x)), __half2float(__ushort_as_half(halves.y)));
    }
    else
    {
        return static_cast<uint32_t>(halves.x) | static_cast<uint32_t>(halves.y) << 16;
    }
#else
    return packPair<T>(widen(E4m3{static_cast<uint8_t>(two)}), widen(E4m3{static_cast<uint8_t>(two >> 8)}));
#endif
}

#if !defined(__CUDACC__)

struct MultiplyArgument
{
    float* d;
    uint32_t const* a;
    uint32_t b[2];
};

//! The tensor cores' product: D[16 x 8] += A[16 x 16] B[16 x 8], float32 sums.
template <typename T>
TF_DEVICE void multiplyAdd(float (&d)[4], uint32_t const (&a)[4], uint32_t b0, uint32_t b1)
{
    MultiplyArgument mine{d, a, {b0, b1}};
    shim::collective(mine,
        [](MultiplyArgument** lanes)
        {
            float left[16][16];
            float right[16][8];
            auto const value = [](uint32_t pair, int high)
            { return widen(T{static_cast<uint16_t>(high != 0 ? pair >> 16 : pair)}); };
            for (int lane = 0; lane < kWARP_SIZE; ++lane)
            {
                int const g = lane / 4;
                int const c = lane % 4 * 2;
                for (int i = 0; i < 4; ++i)
                {
                    for (int h = 0; h < 2; ++h)
                    {
                        left[g + i % 2 * 8][c + h + i / 2 * 8] = value(lanes[lane]->a[i], h);
                    }
                }
                for (int i = 0; i < 2; ++i)
                {
                    for (int h = 0; h < 2; ++h)
                    {
                        right[c + h + i * 8][g] = value(lanes[lane]->b[i], h);
                    }
                }
            }
            float sums[16][8] = {};
            for (int row = 0; row < 16; ++row)
            {
                for (int k = 0; k < 16; ++k)
                {
                    for (int column = 0; column < 8; ++column)
                    {
                        sums[row][column] += left[row][k] * right[k][column];
                    }
                }
            }
            for (int lane = 0; lane < kWARP_SIZE; ++lane)
            {
                for (int i = 0; i < 4; ++i)
                {
                    lanes[lane]->d[i] += sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
                }
            }
        });
}

#endif

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_NUMERIC_CUH
