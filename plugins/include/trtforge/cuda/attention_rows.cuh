//! \file attention_rows.cuh
//! \brief Reading and writing rows: eight values at a time, outputs, and the slots of partial results.
#ifndef TRTFORGE_CUDA_ATTENTION_ROWS_CUH
#define TRTFORGE_CUDA_ATTENTION_ROWS_CUH

#include "trtforge/cuda/attention_params.cuh"
#include "trtforge/cuda/numeric.cuh"

namespace trtforge
{
namespace cuda
{

//! Eight values of the activation dtype as float32.
TF_DEVICE void loadEight(void const* base, int64_t index, int32_t dtype, float (&x)[8])
{
    if (dtype == TRTFORGE_FLOAT32)
    {
        Vec16 const* from = reinterpret_cast<Vec16 const*>(static_cast<float const*>(base) + index);
        Vec16 const low = from[0];
        Vec16 const high = from[1];
        for (int i = 0; i < 4; ++i)
        {
            x[i] = asFloat(low.word[i]);
            x[4 + i] = asFloat(high.word[i]);
        }
        return;
    }
    Vec16 const v = *reinterpret_cast<Vec16 const*>(static_cast<uint16_t const*>(base) + index);
    for (int i = 0; i < 8; ++i)
    {
        uint16_t const bits = static_cast<uint16_t>(v.word[i / 2] >> (i % 2 * 16));
        x[i] = dtype == TRTFORGE_BFLOAT16 ? widen(Bf16{bits}) : widen(Fp16{bits});
    }
}

template <typename Pool>
TF_DEVICE void storeEight(Pool* to, float const (&x)[8], float scale)
{
    if constexpr (sizeof(Pool) == 4)
    {
        Vec16* out = reinterpret_cast<Vec16*>(to);
        out[0] = Vec16{{asBits(x[0]), asBits(x[1]), asBits(x[2]), asBits(x[3])}};
        out[1] = Vec16{{asBits(x[4]), asBits(x[5]), asBits(x[6]), asBits(x[7])}};
    }
    else if constexpr (sizeof(Pool) == 2)
    {
        Vec16 v;
        for (int i = 0; i < 4; ++i)
        {
            v.word[i] = static_cast<uint32_t>(narrow<Pool>(x[2 * i]).bits)
                | static_cast<uint32_t>(narrow<Pool>(x[2 * i + 1]).bits) << 16;
        }
        *reinterpret_cast<Vec16*>(to) = v;
    }
    else
    {
        Vec8 v{{0, 0}};
        for (int i = 0; i < 8; ++i)
        {
            v.word[i / 4] |= static_cast<uint32_t>(narrow<Pool>(x[i] / scale).bits) << (i % 4 * 8);
        }
        *reinterpret_cast<Vec8*>(to) = v;
    }
}

TF_DEVICE void storeOutput(AttentionParams const& p, int64_t index, float x)
{
    if (p.args.activation_dtype == TRTFORGE_FLOAT32)
    {
        static_cast<float*>(p.args.output)[index] = x;
    }
    else if (p.args.activation_dtype == TRTFORGE_BFLOAT16)
    {
        static_cast<Bf16*>(p.args.output)[index] = narrow<Bf16>(x);
    }
    else
    {
        static_cast<Fp16*>(p.args.output)[index] = narrow<Fp16>(x);
    }
}

//! Factor that turns a row's sum of weighted values into its output; 0 when no key was seen.
TF_DEVICE float normalizer(AttentionParams const& p, float maximum, float sum, int32_t head)
{
    if (maximum == -INFINITY && sum == 0.0F)
    {
        return 0.0F;
    }
    float const sink = p.args.sinks != nullptr ? weightOf(p.args.sinks[head] * kLOG2E, maximum) : 0.0F;
    float const scale = p.vScale != nullptr ? *p.vScale : 1.0F;
    return scale / (sum + sink);
}

//! Where row `row` of a request and kv head goes.
TF_DEVICE int64_t outputRow(AttentionParams const& p, Context const& c, int32_t kvHead, int32_t row)
{
    int32_t const head = kvHead * p.group + row % p.group;
    return (c.firstToken + row / p.group) * p.args.output_stride + static_cast<int64_t>(head) * p.args.head_size;
}

TF_DEVICE int64_t partialSlot(AttentionParams const& p, TaskList const& list, int32_t task, int32_t kvHead, int32_t split)
{
    return (static_cast<int64_t>(task) * p.args.num_kv_heads + kvHead) * list.splits + split;
}

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_ATTENTION_ROWS_CUH
