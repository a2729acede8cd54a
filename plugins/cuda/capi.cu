//! \file capi.cu
//! \brief The C ABI over the launchers, for loaders that cannot read C++ (ctypes).
#include "launch.cuh"
#include "trtforge/cuda_abi.h"

#include <cstring>

namespace trtforge
{
namespace cuda
{
namespace
{

thread_local std::string tMessage;

int leave(Status const& status)
{
    if (!status.ok())
    {
        tMessage = status.message;
    }
    return status.code;
}

template <typename Args>
void checkStructs(Args const* args, trtforge_cuda_call const* call)
{
    require(args != nullptr && call != nullptr, TRTFORGE_NULL_POINTER, "args or call is null");
    require(args->struct_size == sizeof(Args) && call->struct_size == sizeof(trtforge_cuda_call),
        TRTFORGE_BAD_STRUCT, "struct sizes are %llu and %llu, this library has %zu and %zu",
        static_cast<unsigned long long>(args->struct_size), static_cast<unsigned long long>(call->struct_size),
        sizeof(Args), sizeof(trtforge_cuda_call));
}

//! Runs body; both a thrown Refusal and a Status that it returns become a code and a message.
template <typename Body>
int run(Body&& body) noexcept
{
    Status inner;
    Status const outer = answered([&] { inner = body(); });
    try
    {
        return leave(outer.ok() ? inner : outer);
    }
    catch (...)
    {
        return TRTFORGE_OUT_OF_MEMORY;
    }
}

Device deviceOf(trtforge_cuda_call const& call)
{
    Device device;
    Status const asked = queryDevice(call.device, device);
    require(asked.ok(), asked.code, "%s", asked.message.c_str());
    if (call.multiprocessors > 0)
    {
        device.multiprocessors = call.multiprocessors;
    }
    return device;
}

AttentionFields fieldsOf(trtforge_paged_attention_args const& a)
{
    AttentionFields f;
    f.numHeads = a.num_heads;
    f.numKvHeads = a.num_kv_heads;
    f.headSize = a.head_size;
    f.blockSize = a.block_size;
    f.activationDtype = a.activation_dtype;
    f.poolDtype = a.pool_dtype;
    f.slidingWindow = a.sliding_window;
    f.scale = a.scale;
    f.softCap = a.soft_cap;
    return f;
}

AttentionShape shapeOf(trtforge_paged_attention_args const& a, trtforge_cuda_call const& call)
{
    AttentionShape s;
    s.tokens = a.num_tokens;
    s.requests = a.num_requests;
    s.maxBlocks = a.max_blocks;
    s.numBlocks = a.num_blocks;
    s.treeMaskWidth = a.tree_mask_width;
    s.maxNewTokens = call.max_new_tokens;
    return s;
}

AttentionTensors tensorsOf(trtforge_paged_attention_args const& a, trtforge_cuda_call const& call)
{
    AttentionTensors t;
    t.query = a.query;
    t.key = a.key;
    t.value = a.value;
    t.kvPool = a.kv_pool;
    t.output = a.output;
    t.queryStart = a.query_start;
    t.sequenceLengths = a.sequence_lengths;
    t.blockTable = a.block_table;
    t.treeMask = a.tree_mask;
    t.sinks = a.sinks;
    t.kScale = call.k_scale;
    t.vScale = call.v_scale;
    t.status = call.status;
    t.queryStride = a.query_stride;
    t.keyStride = a.key_stride;
    t.valueStride = a.value_stride;
    t.outputStride = a.output_stride;
    t.blockTableStride = a.block_table_stride;
    t.treeMaskStride = a.tree_mask_stride;
    return t;
}

TreeTensors treeTensorsOf(trtforge_eagle_tree_args const& a)
{
    TreeTensors t;
    t.draftLogits = a.draft_logits;
    t.rowStride = a.row_stride;
    t.rootTokens = a.root_tokens;
    t.draftToTarget = a.draft_to_target;
    t.staticParents = a.static_parents;
    t.staticRanks = a.static_ranks;
    t.candidateTokens = a.candidate_tokens;
    t.candidateParents = a.candidate_parents;
    t.candidateScores = a.candidate_scores;
    t.frontier = a.frontier;
    t.tokens = a.tokens;
    t.parents = a.parents;
    t.depths = a.depths;
    t.scores = a.scores;
    t.mask = a.mask;
    t.counts = a.counts;
    return t;
}

AcceptTensors acceptTensorsOf(trtforge_eagle_accept_args const& a)
{
    AcceptTensors t;
    t.targetLogits = a.target_logits;
    t.rowStride = a.row_stride;
    t.tokens = a.tokens;
    t.parents = a.parents;
    t.counts = a.counts;
    t.temperatures = a.temperatures;
    t.seeds = a.seeds;
    t.rootPositions = a.root_positions;
    t.path = a.path;
    t.lengths = a.lengths;
    t.emitted = a.emitted;
    t.bonus = a.bonus;
    return t;
}

MoveTensors moveTensorsOf(trtforge_kv_move_args const& a, trtforge_cuda_call const& call)
{
    MoveTensors t;
    t.pools = a.pools;
    t.numPools = a.num_pools;
    t.numBlocks = a.num_blocks;
    t.requests = a.requests;
    t.maxBlocks = a.max_blocks;
    t.pathWidth = a.path_width;
    t.blockTable = a.block_table;
    t.blockTableStride = a.block_table_stride;
    t.basePositions = a.base_positions;
    t.path = a.path;
    t.lengths = a.lengths;
    t.status = call.status;
    return t;
}

Stream streamOf(trtforge_cuda_call const& call)
{
    return static_cast<Stream>(call.stream);
}

} // namespace
} // namespace cuda
} // namespace trtforge

using namespace trtforge::cuda;

extern "C" int trtforge_cuda_abi(void)
{
    return kABI;
}

extern "C" char const* trtforge_cuda_info(void)
{
    return info();
}

extern "C" char const* trtforge_cuda_last_error(void)
{
    return tMessage.c_str();
}

extern "C" int trtforge_cuda_attention_workspace(
    trtforge_paged_attention_args const* args, trtforge_cuda_call const* call, uint64_t* bytes)
{
    return run(
        [&]
        {
            checkStructs(args, call);
            AttentionFields const fields = fieldsOf(*args);
            *bytes = attentionWorkspace(fields, shapeOf(*args, *call), deviceOf(*call));
            return checkAttentionFields(fields);
        });
}

extern "C" int trtforge_cuda_attention_workspace_bound(
    trtforge_paged_attention_args const* args, trtforge_cuda_call const* call, uint64_t* bytes)
{
    return run(
        [&]
        {
            checkStructs(args, call);
            AttentionFields const fields = fieldsOf(*args);
            *bytes = attentionWorkspaceBound(fields, shapeOf(*args, *call), deviceOf(*call));
            return checkAttentionFields(fields);
        });
}

extern "C" int trtforge_cuda_paged_attention(
    trtforge_paged_attention_args const* args, trtforge_cuda_call const* call)
{
    return run(
        [&]
        {
            checkStructs(args, call);
            return pagedAttention(fieldsOf(*args), shapeOf(*args, *call), tensorsOf(*args, *call), call->workspace,
                call->workspace_bytes, deviceOf(*call), streamOf(*call));
        });
}

extern "C" int trtforge_cuda_eagle_tree_build(trtforge_eagle_tree_args const* args, trtforge_cuda_call const* call)
{
    return run(
        [&]
        {
            checkStructs(args, call);
            TreeFields const fields{args->top_k, args->expand, args->levels, args->total, args->logits_dtype};
            return eagleTreeBuild(
                fields, args->level, args->requests, args->vocabulary, treeTensorsOf(*args), streamOf(*call));
        });
}

extern "C" int trtforge_cuda_eagle_accept(trtforge_eagle_accept_args const* args, trtforge_cuda_call const* call)
{
    return run(
        [&]
        {
            checkStructs(args, call);
            AcceptFields const fields{args->total, args->logits_dtype};
            return eagleAccept(fields, args->requests, args->vocabulary, acceptTensorsOf(*args), streamOf(*call));
        });
}

extern "C" int trtforge_cuda_kv_move(trtforge_kv_move_args const* args, trtforge_cuda_call const* call)
{
    return run(
        [&]
        {
            checkStructs(args, call);
            MoveFields const fields{args->num_kv_heads, args->head_size, args->block_size, args->pool_dtype};
            return pagedKvMove(fields, moveTensorsOf(*args, *call), streamOf(*call));
        });
}

extern "C" int trtforge_cuda_describe(char const* op, int32_t const* words)
{
    return run([&] { return describeStatus(op, words); });
}

extern "C" int trtforge_cuda_shim_order(int descending)
{
    return run(
        [&]
        {
#if defined(__CUDACC__)
            trtforge::require(false, TRTFORGE_BAD_VALUE, "a GPU orders its threads itself (asked for %d)", descending);
#else
            shim::machine().descending = descending != 0;
#endif
            return Status{};
        });
}

extern "C" char const* trtforge_cuda_shim_launches()
{
    static std::string taken;
#if !defined(__CUDACC__)
    taken.swap(shim::machine().launches);
    shim::machine().launches.clear();
#endif
    return taken.c_str();
}
