//! \file attention_fp16.cu
//! \brief Tensor-core attention: float16 queries, float16 pool.
#include "attention_mma_launch.cuh"

void trtforge::cuda::launchFp16(AttentionParams const& p, TaskKind kind, Stream stream)
{
    launchMma<Fp16, Fp16>(p, kind, stream);
}
