//! \file paged_attention.cu
//! \brief PagedAttention's launcher: checks, workspace, and the kernels of a step.
//!
//! The host never reads an index tensor. It sizes grids by what the shapes allow; the plan kernel writes the lists
//! of tasks on the device, and blocks past a list's end return. Short and long tasks have a launch each, so a step
//! that mixes decode and prefill is served by both kinds of kernel at full width.
#include "attention_launch.hpp"
#include "launch.cuh"
#include "trtforge/cuda/attention_step.cuh"

#include <cmath>

namespace trtforge
{
namespace cuda
{
namespace
{

constexpr int32_t kMAX_SPLITS = 128;

//! Blocks that keep a GPU busy, and the fewest keys that a split is worth.
struct SplitRule
{
    int32_t blocksPerMultiprocessor;
    int32_t keys;
};

constexpr SplitRule kSHORT_RULE{16, 256};
constexpr SplitRule kLONG_RULE{2, 512};

bool onTensorCores(AttentionArgs const& a)
{
    return a.activation_dtype != TRTFORGE_FLOAT32
        && (a.pool_dtype == a.activation_dtype || a.pool_dtype == TRTFORGE_FLOAT8_E4M3);
}

//! What the kernels read: a scale, no mask where it stands for plain causality, and the scales of the call alone.
AttentionArgs resolved(AttentionArgs a)
{
    a.scale = a.scale != 0.0F || a.head_size <= 0 ? a.scale : 1.0F / std::sqrt(static_cast<float>(a.head_size));
    a.k_scale = 1.0F;
    a.v_scale = 1.0F;
    return a;
}

void checkFields(AttentionArgs const& args)
{
    static int32_t const zero = 0;
    AttentionArgs a = resolved(args);
    a.num_tokens = a.num_requests = a.max_blocks = a.num_blocks = 0;
    a.query_start = &zero;
    a.tree_mask = nullptr;
    checkAttentionShapes(a);
    require(a.num_heads / a.num_kv_heads <= 128, TRTFORGE_BAD_HEADS,
        "%d heads on %d kv heads: at most 128 may share one", a.num_heads, a.num_kv_heads);
}

void checkCall(AttentionArgs const& args, Call const& call)
{
    checkFields(args);
    AttentionArgs const a = resolved(args);
    checkAttentionShapes(a);
    long long const tokens = a.num_tokens;
    require(tokens == 0 || a.num_requests > 0, TRTFORGE_BAD_QUERY_START, "%lld tokens of no request", tokens);
    require(call.max_new_tokens >= 0, TRTFORGE_BAD_SHAPE, "max_new_tokens is %d", call.max_new_tokens);
    require(tokens == 0 || (a.max_blocks > 0 && a.num_blocks > 0), TRTFORGE_BAD_SHAPE,
        "%lld tokens, but the block table has %d columns and the pool %d blocks", tokens, a.max_blocks, a.num_blocks);
    require(!hasTreeMask(a) || call.max_new_tokens <= a.tree_mask_width, TRTFORGE_BAD_TREE_MASK,
        "requests have up to %d new tokens but the tree mask is %d wide", call.max_new_tokens, a.tree_mask_width);
    int64_t const unit = a.activation_dtype == TRTFORGE_FLOAT32 ? 4 : 8; // elements in sixteen bytes
    bool const even = tokens <= 1
        || (a.query_stride % unit == 0 && a.key_stride % unit == 0 && a.value_stride % unit == 0
            && a.output_stride % unit == 0);
    require(even, TRTFORGE_BAD_STRIDE, "row strides %lld, %lld, %lld, %lld: rows must start at multiples of 16 bytes",
        static_cast<long long>(a.query_stride), static_cast<long long>(a.key_stride),
        static_cast<long long>(a.value_stride), static_cast<long long>(a.output_stride));
    requireAligned(a.query, "query");
    requireAligned(a.key, "key");
    requireAligned(a.value, "value");
    requireAligned(a.output, "output");
    requireAligned(a.kv_pool, "kv_pool");
}

int32_t splitsOf(int64_t tasks, int32_t kvHeads, int64_t context, int32_t multiprocessors, SplitRule const& rule)
{
    int64_t const blocks = tasks * kvHeads;
    int64_t const wanted = static_cast<int64_t>(rule.blocksPerMultiprocessor) * multiprocessors;
    if (blocks <= 0 || blocks >= wanted)
    {
        return 1;
    }
    int64_t const byWork = (wanted + blocks - 1) / blocks;
    int64_t const byKeys = (context + rule.keys - 1) / rule.keys;
    int64_t const splits = byWork < byKeys ? byWork : byKeys;
    return static_cast<int32_t>(splits < 1 ? 1 : splits > kMAX_SPLITS ? kMAX_SPLITS : splits);
}

struct Sizes
{
    TaskList shortTasks; //!< pointers unset
    TaskList longTasks;
};

//! The longest context that a task walks.
int64_t longestContext(AttentionArgs const& a)
{
    int64_t const capacity = static_cast<int64_t>(a.max_blocks) * a.block_size;
    int64_t const window = static_cast<int64_t>(a.sliding_window) + kSHORT_ROWS;
    return a.sliding_window > 0 && window < capacity ? window : capacity;
}

Sizes sizesOf(AttentionArgs const& a, Call const& call, Device const& device)
{
    int64_t const group = a.num_heads / a.num_kv_heads;
    int64_t const requests = a.num_requests < a.num_tokens ? a.num_requests : a.num_tokens;
    int64_t const context = longestContext(a);
    Sizes z;
    z.shortTasks.rows = kSHORT_ROWS;
    int64_t shortTasks = requests;
    int64_t longTasks = 0;
    if (!onTensorCores(a))
    {
        shortTasks += a.num_tokens * group / kSHORT_ROWS;
    }
    else if (call.max_new_tokens == 0 || call.max_new_tokens * group > kSHORT_ROWS)
    {
        z.longTasks.rows = longRows(a.head_size);
        int64_t const fewest = kSHORT_ROWS / group + 1; // new tokens of a request that is long
        int64_t const longRequests = requests < a.num_tokens / fewest ? requests : a.num_tokens / fewest;
        longTasks = longRequests > 0 ? a.num_tokens * group / z.longTasks.rows + longRequests : 0;
    }
    require(shortTasks <= 0x7fffffff && longTasks <= 0x7fffffff, TRTFORGE_BAD_SHAPE, "%lld tokens are too many",
        static_cast<long long>(a.num_tokens));
    z.shortTasks.capacity = static_cast<int32_t>(shortTasks);
    z.longTasks.capacity = static_cast<int32_t>(longTasks);
    z.shortTasks.splits = splitsOf(shortTasks, a.num_kv_heads, context, device.multiprocessors, kSHORT_RULE);
    z.longTasks.splits = splitsOf(longTasks, a.num_kv_heads, context, device.multiprocessors, kLONG_RULE);
    return z;
}

int64_t partialRows(AttentionArgs const& a, TaskList const& list)
{
    return list.splits > 1 ? static_cast<int64_t>(list.capacity) * a.num_kv_heads * list.splits * list.rows : 0;
}

//! Places the lists in the workspace (null: only counts) and returns its bytes.
size_t placeLists(AttentionArgs const& a, char* base, Sizes& z)
{
    size_t at = 0;
    auto const place = [&](size_t bytes)
    {
        char* where = base == nullptr ? nullptr : base + at;
        at += aligned256(bytes);
        return where;
    };
    int32_t* counts = reinterpret_cast<int32_t*>(place(8));
    z.shortTasks.count = counts;
    z.longTasks.count = counts == nullptr ? nullptr : counts + 1;
    for (TaskList* list : {&z.shortTasks, &z.longTasks})
    {
        list->tasks = reinterpret_cast<Task*>(place(static_cast<size_t>(list->capacity) * sizeof(Task)));
        size_t const rows = static_cast<size_t>(partialRows(a, *list));
        list->partialOut = reinterpret_cast<float*>(place(rows * static_cast<size_t>(a.head_size) * sizeof(float)));
        list->partialStats = reinterpret_cast<float*>(place(rows * 2 * sizeof(float)));
    }
    return at;
}

int32_t log2Of(int32_t x)
{
    int32_t shift = 0;
    while (1 << shift < x)
    {
        ++shift;
    }
    return shift;
}

AttentionParams paramsOf(AttentionArgs const& args, Call const& call, Sizes const& z)
{
    AttentionParams p;
    p.args = resolved(args);
    if (!hasTreeMask(args))
    {
        p.args.tree_mask = nullptr;
    }
    bool const scaled = args.pool_dtype == TRTFORGE_FLOAT8_E4M3;
    p.kScale = scaled ? call.k_scale : nullptr; // 1 by contract
    p.vScale = scaled ? call.v_scale : nullptr;
    p.status = call.status;
    int64_t const capacity = static_cast<int64_t>(args.max_blocks) * args.block_size;
    p.capacity = capacity < 0x7fffffff ? static_cast<int32_t>(capacity) : 0x7fffffff;
    p.tokens = static_cast<int32_t>(args.num_tokens);
    p.maxNewTokens = call.max_new_tokens;
    p.group = args.num_heads / args.num_kv_heads;
    p.blockShift = log2Of(args.block_size);
    p.shortTasks = z.shortTasks;
    p.longTasks = z.longTasks;
    return p;
}

void launchWrite(AttentionParams const& p, Device const& device, Stream stream)
{
    int64_t const items = static_cast<int64_t>(p.tokens) * p.args.num_kv_heads * p.args.head_size / 4;
    int64_t const blocks = (items + kSTEP_THREADS - 1) / kSTEP_THREADS;
    int64_t const most = static_cast<int64_t>(device.multiprocessors) * 16;
    LaunchShape const shape{blocks < most ? blocks : most, 1, 1, kSTEP_THREADS, kSTEP_THREADS * 8};
    auto const start = [&](void (*kernel)(AttentionParams const))
    { launch<AttentionParams>(kernel, shape, stream, p); };
    switch (p.args.pool_dtype)
    {
    case TRTFORGE_FLOAT32: start(&attentionWrite<float>); break;
    case TRTFORGE_BFLOAT16: start(&attentionWrite<Bf16>); break;
    case TRTFORGE_FLOAT16: start(&attentionWrite<Fp16>); break;
    default: start(&attentionWrite<E4m3>); break;
    }
}

void launchAttend(AttentionParams const& p, TaskKind kind, Stream stream)
{
    bool const fp8 = p.args.pool_dtype == TRTFORGE_FLOAT8_E4M3;
    if (!onTensorCores(p.args))
    {
        launchSimt(p, stream);
    }
    else if (p.args.activation_dtype == TRTFORGE_BFLOAT16)
    {
        fp8 ? launchBf16Fp8(p, kind, stream) : launchBf16(p, kind, stream);
    }
    else
    {
        fp8 ? launchFp16Fp8(p, kind, stream) : launchFp16(p, kind, stream);
    }
    TaskList const& list = kind == TaskKind::kLONG ? p.longTasks : p.shortTasks;
    if (list.splits > 1)
    {
        LaunchShape const merge{list.capacity, p.args.num_kv_heads, 1, kSTEP_THREADS, 0};
        launch<AttentionParams, TaskList>(&attentionMerge, merge, stream, p, list);
    }
}

} // namespace

Status checkAttentionFields(AttentionArgs const& args) noexcept
{
    return answered([&] { checkFields(args); });
}

size_t attentionWorkspace(AttentionArgs const& args, Call const& call, Device const& device) noexcept
{
    size_t bytes = 0;
    answered(
        [&]
        {
            checkFields(args);
            Sizes z = sizesOf(args, call, device);
            bytes = placeLists(args, nullptr, z);
        });
    return bytes;
}

size_t attentionWorkspaceBound(AttentionArgs const& limits, Call const& call, Device const& device) noexcept
{
    size_t bytes = 0;
    answered(
        [&]
        {
            checkFields(limits);
            Sizes z = sizesOf(limits, call, device);
            int64_t const context = longestContext(limits);
            size_t const row = static_cast<size_t>(limits.head_size) * sizeof(float);
            bytes = aligned256(8);
            struct Kind
            {
                TaskList const& list;
                SplitRule const& rule;
            };
            for (Kind const& kind : {Kind{z.shortTasks, kSHORT_RULE}, Kind{z.longTasks, kLONG_RULE}})
            {
                // Splits appear only while blocks are fewer than wanted, so slots stay below twice that.
                int64_t const wanted
                    = static_cast<int64_t>(kind.rule.blocksPerMultiprocessor) * device.multiprocessors;
                int64_t const cap = context / kind.rule.keys + 1;
                int64_t const bySplits = static_cast<int64_t>(kind.list.capacity) * limits.num_kv_heads
                    * (cap < kMAX_SPLITS ? cap : kMAX_SPLITS);
                size_t const rows = static_cast<size_t>((bySplits < 2 * wanted ? bySplits : 2 * wanted)
                    * kind.list.rows);
                bytes += aligned256(static_cast<size_t>(kind.list.capacity) * sizeof(Task)) + aligned256(rows * row)
                    + aligned256(rows * 2 * sizeof(float));
            }
        });
    return bytes;
}

Status pagedAttention(AttentionArgs const& args, Call const& call, Device const& device) noexcept
{
    return answered(
        [&]
        {
            checkCall(args, call);
            Sizes z = sizesOf(args, call, device);
            size_t const needed = placeLists(args, static_cast<char*>(call.workspace), z);
            size_t const given = call.workspace == nullptr ? 0 : static_cast<size_t>(call.workspace_bytes);
            require(given >= needed, TRTFORGE_BAD_SHAPE, "the workspace has %zu bytes, this call needs %zu", given, needed);
            require(reinterpret_cast<uintptr_t>(call.workspace) % 256 == 0, TRTFORGE_BAD_STRIDE,
                "the workspace must be aligned to 256 bytes");
            Stream const stream = streamOf(call);
            AttentionParams const p = paramsOf(args, call, z);
            if (call.status != nullptr)
            {
                LaunchShape const one{1, 1, 1, kSTEP_THREADS, kSTEP_THREADS * 4};
                launch<AttentionParams>(&attentionCheck, one, stream, p);
            }
            if (args.num_tokens == 0)
            {
                return;
            }
            launchWrite(p, device, stream);
            launchAttend(p, TaskKind::kSHORT, stream);
            if (p.longTasks.capacity > 0)
            {
                launchAttend(p, TaskKind::kLONG, stream);
            }
        });
}

} // namespace cuda
} // namespace trtforge
