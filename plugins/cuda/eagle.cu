//! \file eagle.cu
//! \brief Launchers of EagleTreeBuild and EagleAccept.
#include "launch.cuh"
#include "trtforge/cuda/eagle_kernels.cuh"
#include "trtforge/eagle_rules.hpp"

namespace trtforge
{
namespace cuda
{
namespace
{

constexpr int kREDUCTION_BYTES = kEAGLE_THREADS / kWARP_SIZE * static_cast<int>(sizeof(Ranked));

} // namespace

int32_t treeCandidates(TreeArgs const& args) noexcept
{
    return candidatesOf(args);
}

Status checkTreeFields(TreeArgs const& args) noexcept
{
    return answered([&] { checkTreeLimits(args); });
}

Status eagleTreeBuild(TreeArgs const& args, Call const& call) noexcept
{
    return answered(
        [&]
        {
            checkTree(args);
            TreeParams p;
            p.args = args;
            p.rows = args.level == 0 ? 1 : args.expand;
            p.candidates = candidatesOf(args);
            p.offset = levelOffset(args.level, args.top_k, args.expand);
            LaunchShape const rows{p.rows, args.requests, 1, kEAGLE_THREADS, kREDUCTION_BYTES};
            launch<TreeParams>(&treeChildren, rows, streamOf(call), p);
            LaunchShape const select{args.requests, 1, 1, kEAGLE_THREADS, treeSharedBytes(p.candidates)};
            launch<TreeParams>(&treeSelect, select, streamOf(call), p);
        });
}

Status checkAcceptFields(AcceptArgs const& args) noexcept
{
    return answered([&] { checkAcceptLimits(args); });
}

Status eagleAccept(AcceptArgs const& args, Call const& call) noexcept
{
    return answered(
        [&]
        {
            checkAccept(args);
            LaunchShape const shape{args.requests, 1, 1, kEAGLE_THREADS, kREDUCTION_BYTES};
            launch<AcceptArgs>(&acceptPath, shape, streamOf(call), args);
        });
}

} // namespace cuda
} // namespace trtforge
