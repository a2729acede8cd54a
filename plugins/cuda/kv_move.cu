//! \file kv_move.cu
//! \brief Launcher of PagedKVMove.
#include "launch.cuh"
#include "trtforge/cuda/kv_move_kernels.cuh"
#include "trtforge/eagle_rules.hpp"

namespace trtforge
{
namespace cuda
{
Status pagedKvMove(MoveArgs const& args, Call const& call) noexcept
{
    return answered(
        [&]
        {
            checkMove(args);
            for (int32_t i = 0; args.requests > 0 && i < args.num_pools; ++i)
            {
                requireAligned(args.pools[i], "a pool");
            }
            if (args.requests == 0 || args.max_blocks == 0 || args.num_blocks == 0)
            {
                return;
            }
            Stream const stream = streamOf(call);
            MoveParams p{};
            p.args = args;
            p.status = call.status;
            p.rowBytes = args.head_size * bytesOf(args.pool_dtype);
            if (call.status != nullptr)
            {
                launch<MoveParams>(&moveCheck, LaunchShape{1, 1, 1, kMOVE_THREADS, 0}, stream, p);
            }
            for (int32_t first = 0; first < args.num_pools; first += kMOVE_POOLS)
            {
                int32_t const left = args.num_pools - first;
                p.args.num_pools = left < kMOVE_POOLS ? left : kMOVE_POOLS;
                for (int32_t i = 0; i < p.args.num_pools; ++i)
                {
                    p.pools[i] = args.pools[first + i];
                }
                bool const wide = p.rowBytes % 16 == 0;
                int64_t const slices = static_cast<int64_t>(p.args.num_pools) * 2 * args.num_kv_heads
                    * (p.rowBytes / (wide ? 16 : 8));
                LaunchShape const shape{
                    (slices + kMOVE_THREADS - 1) / kMOVE_THREADS, args.requests, 1, kMOVE_THREADS, 0};
                launch<MoveParams>(wide ? &moveRows<Vec16> : &moveRows<Vec8>, shape, stream, p);
            }
        });
}

} // namespace cuda
} // namespace trtforge
