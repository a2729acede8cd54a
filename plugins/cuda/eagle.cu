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

TreeLimits limitsOf(TreeFields const& f)
{
    return TreeLimits{f.topK, f.expand, f.levels, f.total, f.logitsDtype};
}

void checkTree(TreeFields const& f, int32_t level, int32_t requests, int32_t vocabulary, TreeTensors const& t)
{
    checkTreeLimits(limitsOf(f));
    checkTreeStep(limitsOf(f), level, requests, vocabulary, t.rowStride);
    bool const outputs = t.tokens != nullptr && t.parents != nullptr && t.depths != nullptr && t.scores != nullptr
        && t.mask != nullptr && t.counts != nullptr;
    bool const state = t.candidateTokens != nullptr && t.candidateParents != nullptr && t.candidateScores != nullptr
        && t.frontier != nullptr;
    require(requests == 0 || (outputs && state && t.draftLogits != nullptr && t.rootTokens != nullptr),
        TRTFORGE_NULL_POINTER, "a tensor of EagleTreeBuild is null");
    require((t.staticParents == nullptr) == (t.staticRanks == nullptr), TRTFORGE_NULL_POINTER,
        "a static tree needs both its parents and its ranks");
}

void checkAccept(AcceptFields const& f, int32_t requests, int32_t vocabulary, AcceptTensors const& t)
{
    checkAcceptLimits(f.total, f.logitsDtype);
    checkAcceptStep(requests, vocabulary, t.rowStride);
    require(requests == 0
            || (t.targetLogits != nullptr && t.tokens != nullptr && t.parents != nullptr && t.counts != nullptr
                && t.path != nullptr && t.lengths != nullptr && t.emitted != nullptr && t.bonus != nullptr),
        TRTFORGE_NULL_POINTER, "a tensor of EagleAccept is null");
    require(t.temperatures == nullptr || (t.seeds != nullptr && t.rootPositions != nullptr), TRTFORGE_NULL_POINTER,
        "sampling needs seeds and root positions");
}

} // namespace

int32_t treeCandidates(TreeFields const& f) noexcept
{
    return candidatesOf(limitsOf(f));
}

Status checkTreeFields(TreeFields const& fields) noexcept
{
    return answered([&] { checkTreeLimits(limitsOf(fields)); });
}

Status checkStaticTree(TreeFields const& fields, int32_t const* parents, int32_t const* ranks) noexcept
{
    return answered(
        [&]
        {
            checkTreeLimits(limitsOf(fields));
            require(parents != nullptr && ranks != nullptr, TRTFORGE_NULL_POINTER, "parents or ranks are null");
            checkStaticShape(limitsOf(fields), parents, ranks);
        });
}

Status checkTreeCall(TreeFields const& fields, int32_t level, int32_t requests, int32_t vocabulary,
    TreeTensors const& tensors) noexcept
{
    return answered([&] { checkTree(fields, level, requests, vocabulary, tensors); });
}

Status eagleTreeBuild(TreeFields const& fields, int32_t level, int32_t requests, int32_t vocabulary,
    TreeTensors const& tensors, Stream stream) noexcept
{
    return answered(
        [&]
        {
            checkTree(fields, level, requests, vocabulary, tensors);
            TreeParams p;
            p.fields = fields;
            p.tensors = tensors;
            p.level = level;
            p.rows = level == 0 ? 1 : fields.expand;
            p.vocabulary = vocabulary;
            p.candidates = treeCandidates(fields);
            p.offset = level == 0 ? 0 : fields.topK + (level - 1) * fields.expand * fields.topK;
            LaunchShape const rows{p.rows, requests, 1, kEAGLE_THREADS, kREDUCTION_BYTES};
            launch<TreeParams>(&treeChildren, rows, stream, p);
            LaunchShape const select{requests, 1, 1, kEAGLE_THREADS, treeSharedBytes(p.candidates)};
            launch<TreeParams>(&treeSelect, select, stream, p);
        });
}

Status checkAcceptFields(AcceptFields const& fields) noexcept
{
    return answered([&] { checkAcceptLimits(fields.total, fields.logitsDtype); });
}

Status checkAcceptCall(
    AcceptFields const& fields, int32_t requests, int32_t vocabulary, AcceptTensors const& tensors) noexcept
{
    return answered([&] { checkAccept(fields, requests, vocabulary, tensors); });
}

Status eagleAccept(AcceptFields const& fields, int32_t requests, int32_t vocabulary, AcceptTensors const& tensors,
    Stream stream) noexcept
{
    return answered(
        [&]
        {
            checkAccept(fields, requests, vocabulary, tensors);
            AcceptParams p;
            p.fields = fields;
            p.tensors = tensors;
            p.vocabulary = vocabulary;
            LaunchShape const shape{requests, 1, 1, kEAGLE_THREADS, kREDUCTION_BYTES};
            launch<AcceptParams>(&acceptPath, shape, stream, p);
        });
}

} // namespace cuda
} // namespace trtforge
