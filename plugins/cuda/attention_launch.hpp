//! \file attention_launch.hpp
//! \brief The instantiations of the attention kernels, one translation unit a pair of types.
#ifndef TRTFORGE_CUDA_ATTENTION_LAUNCH_HPP
#define TRTFORGE_CUDA_ATTENTION_LAUNCH_HPP

#include "trtforge/cuda/attention_params.cuh"

namespace trtforge
{
namespace cuda
{

//! Rows of a long task for a head size.
constexpr int32_t longRows(int32_t headSize)
{
    return headSize <= 128 ? 128 : 64;
}

//! Which of its two lists a launch serves.
enum class TaskKind : int32_t
{
    kSHORT,
    kLONG
};

//! Named for queries and pool. All throw Refusal when the driver refuses.
void launchBf16(AttentionParams const& p, TaskKind kind, Stream stream);
void launchBf16Fp8(AttentionParams const& p, TaskKind kind, Stream stream);
void launchFp16(AttentionParams const& p, TaskKind kind, Stream stream);
void launchFp16Fp8(AttentionParams const& p, TaskKind kind, Stream stream);
//! Short tasks only; any queries.
void launchSimt(AttentionParams const& p, Stream stream);

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_ATTENTION_LAUNCH_HPP
