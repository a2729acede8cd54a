//! \file attention_bf16_fp8.cu
//! \brief Tensor-core attention: bfloat16 queries, FP8 pool.
#include "attention_mma_launch.cuh"

void trtforge::cuda::launchBf16Fp8(AttentionParams const& p, TaskKind kind, Stream stream)
{
    launchMma<Bf16, E4m3>(p, kind, stream);
}
