//! \file attention_simt.cu
//! \brief Attention in float32 arithmetic, for every pool type.
#include "attention_launch.hpp"
#include "launch.cuh"
#include "trtforge/cuda/attention_simt.cuh"

namespace trtforge
{
namespace cuda
{

void launchSimt(AttentionParams const& p, Stream stream)
{
    TaskList const& list = p.shortTasks;
    LaunchShape const shape{
        list.capacity, p.args.num_kv_heads, list.splits, kSIMT_THREADS, simtSharedBytes(p.args.head_size)};
    auto const start = [&](void (*kernel)(AttentionParams const, TaskList const))
    { launch<AttentionParams, TaskList>(kernel, shape, stream, p, list); };
    switch (p.args.pool_dtype)
    {
    case TRTFORGE_FLOAT32: start(&attentionSimt<float>); break;
    case TRTFORGE_BFLOAT16: start(&attentionSimt<Bf16>); break;
    case TRTFORGE_FLOAT16: start(&attentionSimt<Fp16>); break;
    default: start(&attentionSimt<E4m3>); break;
    }
}

} // namespace cuda
} // namespace trtforge
