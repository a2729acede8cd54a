//! \file elementwise_kernels.hpp
//! \brief Fused row-wise helpers of the executor: norms, RoPE, SiLU, fake quantization, embedding, argmax.
//!
//! Everything is computed in float32 and rounded once, when it is stored. A row's result does not depend on the
//! other rows of the call.
#ifndef TRTFORGE_ELEMENTWISE_KERNELS_HPP
#define TRTFORGE_ELEMENTWISE_KERNELS_HPP

#include "trtforge/simd.hpp"

namespace trtforge
{
namespace TRTFORGE_ISA_NAMESPACE
{

//! x * rsqrt(mean(x^2) + eps) * (weight + offset) for one row.
template <typename T, typename W>
static void normRow(T const* x, W const* weight, T* out, int64_t width, float eps, float offset)
{
    // Four accumulators hide the latency; they are added in a fixed order.
    Vec sums[4] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (; i + 4 * kLANES <= width; i += 4 * kLANES)
    {
        for (int c = 0; c < 4; ++c)
        {
            Vec const v = load(x + i + c * kLANES);
            sums[c] = fma(v, v, sums[c]);
        }
    }
    for (; i + kLANES <= width; i += kLANES)
    {
        Vec const v = load(x + i);
        sums[0] = fma(v, v, sums[0]);
    }
    if (i < width)
    {
        Vec const v = loadSome(x + i, width - i);
        sums[1] = fma(v, v, sums[1]);
    }
    float const square = sumLanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
    Vec const inverse = set1(1.0F / __builtin_sqrtf(square / static_cast<float>(width) + eps));
    Vec const shift = set1(offset);
    for (i = 0; i + kLANES <= width; i += kLANES)
    {
        store(out + i, mul(mul(load(x + i), inverse), add(load(weight + i), shift)));
    }
    if (i < width)
    {
        Vec const w = add(loadSome(weight + i, width - i), shift);
        storeSome(out + i, mul(mul(loadSome(x + i, width - i), inverse), w), width - i);
    }
}

template <typename T, typename W>
static void normRows(trtforge_rms_norm_args const& call, int64_t begin, int64_t end)
{
    W const* weight = static_cast<W const*>(call.weight);
    for (int64_t t = begin; t < end; ++t)
    {
        T const* x = static_cast<T const*>(call.x) + t * call.x_stride;
        T* out = static_cast<T*>(call.out) + t * call.out_stride;
        if (call.residual != nullptr)
        {
            T* residual = static_cast<T*>(call.residual) + t * call.residual_stride;
            int64_t i = 0;
            for (; i + kLANES <= call.width; i += kLANES)
            {
                store(residual + i, add(load(residual + i), load(x + i)));
            }
            for (; i < call.width; ++i)
            {
                storeOne(residual + i, toFloat(residual[i]) + toFloat(x[i]));
            }
            x = residual;
        }
        normRow(x, weight, out, call.width, call.eps, call.weight_offset);
    }
}

template <typename T>
static void normWeights(trtforge_rms_norm_args const& call, int64_t begin, int64_t end)
{
    switch (call.weight_dtype)
    {
    case TRTFORGE_FLOAT32: normRows<T, float>(call, begin, end); break;
    case TRTFORGE_BFLOAT16: normRows<T, Bf16>(call, begin, end); break;
    default: normRows<T, Fp16>(call, begin, end); break;
    }
}

static void rmsNorm(trtforge_rms_norm_args const& call, int64_t begin, int64_t end)
{
    switch (call.dtype)
    {
    case TRTFORGE_FLOAT32: normWeights<float>(call, begin, end); break;
    case TRTFORGE_BFLOAT16: normWeights<Bf16>(call, begin, end); break;
    default: normWeights<Fp16>(call, begin, end); break;
    }
}

template <typename T>
static void rotateHead(T* x, float const* cosine, float const* sine, int32_t half)
{
    int32_t i = 0;
    for (; i + kLANES <= half; i += kLANES)
    {
        Vec const a = load(x + i);
        Vec const b = load(x + half + i);
        Vec const c = load(cosine + i);
        Vec const s = load(sine + i);
        // Products rounded before the sum, as in x * cos + rotate_half(x) * sin.
        store(x + i, sub(mul(a, c), mul(b, s)));
        store(x + half + i, add(mul(b, c), mul(a, s)));
    }
    for (; i < half; ++i)
    {
        float const a = toFloat(x[i]);
        float const b = toFloat(x[half + i]);
        storeOne(x + i, a * cosine[i] - b * sine[i]);
        storeOne(x + half + i, b * cosine[i] + a * sine[i]);
    }
}

template <typename T>
static void rotateRows(trtforge_rope_args const& call, int64_t begin, int64_t end)
{
    int32_t const half = call.rotary / 2;
    for (int64_t t = begin; t < end; ++t)
    {
        float const* cosine = call.cosine + t * half;
        float const* sine = call.sine + t * half;
        T* query = static_cast<T*>(call.query) + t * call.query_stride;
        for (int32_t h = 0; h < call.num_heads; ++h)
        {
            rotateHead(query + static_cast<int64_t>(h) * call.head_size, cosine, sine, half);
        }
        T* key = static_cast<T*>(call.key) + t * call.key_stride;
        for (int32_t h = 0; h < call.num_kv_heads; ++h)
        {
            rotateHead(key + static_cast<int64_t>(h) * call.head_size, cosine, sine, half);
        }
    }
}

static void rope(trtforge_rope_args const& call, int64_t begin, int64_t end)
{
    switch (call.dtype)
    {
    case TRTFORGE_FLOAT32: rotateRows<float>(call, begin, end); break;
    case TRTFORGE_BFLOAT16: rotateRows<Bf16>(call, begin, end); break;
    default: rotateRows<Fp16>(call, begin, end); break;
    }
}

//! a / (1 + e^-a)
TRTFORGE_INLINE Vec silu(Vec a)
{
    return div(a, add(set1(1.0F), exp2(mul(a, set1(-kLOG2E)))));
}

template <typename T>
static void siluRows(trtforge_silu_mul_args const& call, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; ++t)
    {
        T const* gate = static_cast<T const*>(call.x) + t * call.x_stride;
        T const* up = gate + call.width;
        T* out = static_cast<T*>(call.out) + t * call.out_stride;
        int64_t i = 0;
        for (; i + kLANES <= call.width; i += kLANES)
        {
            store(out + i, mul(silu(load(gate + i)), load(up + i)));
        }
        if (i < call.width)
        {
            int64_t const rest = call.width - i;
            storeSome(out + i, mul(silu(loadSome(gate + i, rest)), loadSome(up + i, rest)), rest);
        }
    }
}

static void siluMul(trtforge_silu_mul_args const& call, int64_t begin, int64_t end)
{
    switch (call.dtype)
    {
    case TRTFORGE_FLOAT32: siluRows<float>(call, begin, end); break;
    case TRTFORGE_BFLOAT16: siluRows<Bf16>(call, begin, end); break;
    default: siluRows<Fp16>(call, begin, end); break;
    }
}

template <typename T>
static void fp8Elements(trtforge_fp8_fake_quant_args const& call, int64_t begin, int64_t end)
{
    T const* x = static_cast<T const*>(call.x);
    T* out = static_cast<T*>(call.out);
    float const after = call.dequantize != 0 ? call.scale : 1.0F;
    float const scale = call.scale;
    constexpr int64_t kSTEP = 64;
    int64_t i = begin;
    for (; i + kSTEP <= end; i += kSTEP)
    {
        float buffer[kSTEP];
        for (int j = 0; j < kSTEP; j += kLANES)
        {
            store(buffer + j, load(x + i + j));
        }
        for (int j = 0; j < kSTEP; ++j)
        {
            buffer[j] = e4m3Rounded(buffer[j] / scale) * after;
        }
        for (int j = 0; j < kSTEP; j += kLANES)
        {
            store(out + i + j, load(buffer + j));
        }
    }
    for (; i < end; ++i)
    {
        storeOne(out + i, toFloat(e4m3From(toFloat(x[i]) / scale)) * after);
    }
}

static void fp8FakeQuant(trtforge_fp8_fake_quant_args const& call, int64_t begin, int64_t end)
{
    switch (call.dtype)
    {
    case TRTFORGE_FLOAT32: fp8Elements<float>(call, begin, end); break;
    case TRTFORGE_BFLOAT16: fp8Elements<Bf16>(call, begin, end); break;
    default: fp8Elements<Fp16>(call, begin, end); break;
    }
}

//! Nearest E2M1 value (0, .5, 1, 1.5, 2, 3, 4, 6), ties to the even mantissa, saturating.
TRTFORGE_INLINE Vec e2m1(Vec x)
{
    Vec const a = abs(x);
    Vec const large = selectLess(a, set1(4.0F), set1(1.0F), set1(2.0F));
    Vec const step = selectLess(a, set1(2.0F), set1(0.5F), large);
    Vec const bounded = min(set1(6.0F), max(set1(-6.0F), x)); // NaN passes
    return mul(round(div(bounded, step)), step);
}

template <typename T>
static void nvfp4Rows(trtforge_nvfp4_fake_quant_args const& call, int64_t begin, int64_t end)
{
    constexpr int kBLOCK = 16;
    float const global = call.scale == 0.0F ? 1.0F : call.scale;
    for (int64_t t = begin; t < end; ++t)
    {
        T const* x = static_cast<T const*>(call.x) + t * call.x_stride;
        T* out = static_cast<T*>(call.out) + t * call.out_stride;
        for (int64_t i = 0; i < call.width; i += kBLOCK)
        {
            constexpr int kVECTORS = kBLOCK / kLANES;
            Vec v[kVECTORS];
            Vec top = zero();
            for (int c = 0; c < kVECTORS; ++c)
            {
                v[c] = load(x + i + c * kLANES);
                top = max(abs(v[c]), top);
            }
            float const quantized = toFloat(e4m3From(maxLanes(top) / (6.0F * global))) * global;
            // A block whose scale rounds to zero becomes zero.
            Vec const divisor = set1(quantized == 0.0F ? 1.0F : quantized);
            for (int c = 0; c < kVECTORS; ++c)
            {
                store(out + i + c * kLANES, mul(e2m1(div(v[c], divisor)), set1(quantized)));
            }
        }
    }
}

static void nvfp4FakeQuant(trtforge_nvfp4_fake_quant_args const& call, int64_t begin, int64_t end)
{
    switch (call.dtype)
    {
    case TRTFORGE_FLOAT32: nvfp4Rows<float>(call, begin, end); break;
    case TRTFORGE_BFLOAT16: nvfp4Rows<Bf16>(call, begin, end); break;
    default: nvfp4Rows<Fp16>(call, begin, end); break;
    }
}

template <typename From, typename To>
static void gatherRows(trtforge_embedding_args const& call, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; ++t)
    {
        From const* from = static_cast<From const*>(call.table) + call.ids[t] * call.width;
        To* to = static_cast<To*>(call.out) + t * call.out_stride;
        int64_t i = 0;
        for (; i + kLANES <= call.width; i += kLANES)
        {
            store(to + i, load(from + i));
        }
        for (; i < call.width; ++i)
        {
            storeOne(to + i, toFloat(from[i]));
        }
    }
}

template <typename From>
static void gatherAs(trtforge_embedding_args const& call, int64_t begin, int64_t end)
{
    switch (call.dtype)
    {
    case TRTFORGE_FLOAT32: gatherRows<From, float>(call, begin, end); break;
    case TRTFORGE_BFLOAT16: gatherRows<From, Bf16>(call, begin, end); break;
    default: gatherRows<From, Fp16>(call, begin, end); break;
    }
}

static void embedding(trtforge_embedding_args const& call, int64_t begin, int64_t end)
{
    switch (call.table_dtype)
    {
    case TRTFORGE_FLOAT32: gatherAs<float>(call, begin, end); break;
    case TRTFORGE_BFLOAT16: gatherAs<Bf16>(call, begin, end); break;
    default: gatherAs<Fp16>(call, begin, end); break;
    }
}

static void argmaxLogsumexp(trtforge_argmax_logsumexp_args const& call, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; ++row)
    {
        float const* x = call.logits + row * call.logits_stride;
        Vec tops[4] = {set1(-__builtin_inff()), set1(-__builtin_inff()), set1(-__builtin_inff()),
            set1(-__builtin_inff())};
        int64_t i = 0;
        for (; i + 4 * kLANES <= call.width; i += 4 * kLANES)
        {
            for (int c = 0; c < 4; ++c)
            {
                tops[c] = max(load(x + i + c * kLANES), tops[c]);
            }
        }
        float top = maxLanes(max(max(tops[0], tops[1]), max(tops[2], tops[3])));
        for (; i < call.width; ++i)
        {
            top = x[i] > top ? x[i] : top;
        }
        if (call.index != nullptr)
        {
            int64_t at = 0;
            while (at < call.width && x[at] != top)
            {
                ++at;
            }
            call.index[row] = at < call.width ? at : 0; // a row of NaN has no maximum
        }
        if (call.maximum != nullptr)
        {
            call.maximum[row] = top;
        }
        if (call.logsumexp != nullptr)
        {
            Vec const shift = set1(top);
            Vec sums[2] = {zero(), zero()};
            for (i = 0; i + 2 * kLANES <= call.width; i += 2 * kLANES)
            {
                for (int c = 0; c < 2; ++c)
                {
                    Vec const d = mul(sub(load(x + i + c * kLANES), shift), set1(kLOG2E));
                    sums[c] = add(sums[c], exp2(d));
                }
            }
            float sum = sumLanes(add(sums[0], sums[1]));
            for (; i < call.width; ++i)
            {
                sum += exp2One((x[i] - top) * kLOG2E);
            }
            call.logsumexp[row] = top + __builtin_logf(sum);
        }
    }
}

} // namespace TRTFORGE_ISA_NAMESPACE
} // namespace trtforge

#endif // TRTFORGE_ELEMENTWISE_KERNELS_HPP
