//! \file attention_fp16_fp8.cu
//! \brief Tensor-core attention: float16 queries, FP8 pool.
#include "attention_mma_launch.cuh"

void trtforge::cuda::launchFp16Fp8(AttentionParams const& p, TaskKind kind, Stream stream)
{
    launchMma<Fp16, E4m3>(p, kind, stream);
}
