//! \file attention_mma_launch.cuh
//! \brief Chooses the tensor-core instantiation of a head size; included by the units that name the types.
#ifndef TRTFORGE_CUDA_ATTENTION_MMA_LAUNCH_CUH
#define TRTFORGE_CUDA_ATTENTION_MMA_LAUNCH_CUH

#include "attention_launch.hpp"
#include "launch.cuh"
#include "trtforge/cuda/attention_mma.cuh"

namespace trtforge
{
namespace cuda
{

template <typename T, typename Pool, int HEAD, int WARPS_M, int WARPS_N>
void launchMmaTile(AttentionParams const& p, TaskList const& list, Stream stream)
{
    using Tile = MmaTile<HEAD, WARPS_M, WARPS_N>;
    LaunchShape const shape{list.capacity, p.args.num_kv_heads, list.splits, Tile::kTHREADS, Tile::kSHARED_BYTES};
    launch<AttentionParams, TaskList>(
        &attentionMma<T, Pool, HEAD, WARPS_M, WARPS_N>, shape, stream, p, list);
}

template <typename T, typename Pool>
void launchMma(AttentionParams const& p, TaskKind kind, Stream stream)
{
    bool const isLong = kind == TaskKind::kLONG;
    if (p.args.head_size <= 64)
    {
        isLong ? launchMmaTile<T, Pool, 64, 8, 1>(p, p.longTasks, stream)
               : launchMmaTile<T, Pool, 64, 1, 4>(p, p.shortTasks, stream);
    }
    else if (p.args.head_size <= 128)
    {
        isLong ? launchMmaTile<T, Pool, 128, 8, 1>(p, p.longTasks, stream)
               : launchMmaTile<T, Pool, 128, 1, 4>(p, p.shortTasks, stream);
    }
    else
    {
        isLong ? launchMmaTile<T, Pool, 256, 4, 1>(p, p.longTasks, stream)
               : launchMmaTile<T, Pool, 256, 1, 2>(p, p.shortTasks, stream);
    }
}

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_ATTENTION_MMA_LAUNCH_CUH
