//! \file kv_move.cu
//! \brief Launcher of PagedKVMove.
#include "launch.cuh"
#include "trtforge/cuda/kv_move_kernels.cuh"
#include "trtforge/eagle_rules.hpp"

namespace trtforge
{
namespace cuda
{
namespace
{

void checkMove(MoveFields const& f, MoveTensors const& t)
{
    checkMoveLimits(f.numKvHeads, f.headSize, f.blockSize, f.poolDtype);
    checkMoveShapes(t.numPools, t.numBlocks, t.requests, t.maxBlocks, t.pathWidth, t.blockTableStride);
    if (t.numPools == 0 || t.requests == 0)
    {
        return;
    }
    require(t.pools != nullptr && t.blockTable != nullptr && t.basePositions != nullptr && t.path != nullptr
            && t.lengths != nullptr,
        TRTFORGE_NULL_POINTER, "a tensor of PagedKVMove is null");
    for (int32_t i = 0; i < t.numPools; ++i)
    {
        require(t.pools[i] != nullptr, TRTFORGE_NULL_POINTER, "pool %d is null", i);
        requireAligned(t.pools[i], "a pool");
    }
}

} // namespace

Status checkMoveFields(MoveFields const& f) noexcept
{
    return answered([&] { checkMoveLimits(f.numKvHeads, f.headSize, f.blockSize, f.poolDtype); });
}

Status checkMoveCall(MoveFields const& fields, MoveTensors const& tensors) noexcept
{
    return answered([&] { checkMove(fields, tensors); });
}

Status pagedKvMove(MoveFields const& fields, MoveTensors const& tensors, Stream stream) noexcept
{
    return answered(
        [&]
        {
            checkMove(fields, tensors);
            if (tensors.requests == 0 || tensors.maxBlocks == 0 || tensors.numBlocks == 0)
            {
                return;
            }
            MoveParams p{};
            p.tensors = tensors;
            p.numKvHeads = fields.numKvHeads;
            p.blockSize = fields.blockSize;
            p.rowBytes = fields.headSize * bytesOf(fields.poolDtype);
            if (tensors.status != nullptr)
            {
                launch<MoveParams>(&moveCheck, LaunchShape{1, 1, 1, kMOVE_THREADS, 0}, stream, p);
            }
            for (int32_t first = 0; first < tensors.numPools; first += kMOVE_POOLS)
            {
                int32_t const left = tensors.numPools - first;
                p.numPools = left < kMOVE_POOLS ? left : kMOVE_POOLS;
                for (int32_t i = 0; i < p.numPools; ++i)
                {
                    p.pools[i] = tensors.pools[first + i];
                }
                bool const wide = p.rowBytes % 16 == 0;
                int64_t const slices = static_cast<int64_t>(p.numPools) * 2 * p.numKvHeads
                    * (p.rowBytes / (wide ? 16 : 8));
                LaunchShape const shape{
                    (slices + kMOVE_THREADS - 1) / kMOVE_THREADS, tensors.requests, 1, kMOVE_THREADS, 0};
                launch<MoveParams>(wide ? &moveRows<Vec16> : &moveRows<Vec8>, shape, stream, p);
            }
        });
}

} // namespace cuda
} // namespace trtforge
