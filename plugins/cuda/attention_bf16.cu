//! \file attention_bf16.cu
//! \brief Tensor-core attention: bfloat16 queries, bfloat16 pool.
#include "attention_mma_launch.cuh"

void trtforge::cuda::launchBf16(AttentionParams const& p, TaskKind kind, Stream stream)
{
    launchMma<Bf16, Bf16>(p, kind, stream);
}
