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

bool onTensorCores(AttentionFields const& f)
{
    return f.activationDtype != TRTFORGE_FLOAT32
        && (f.poolDtype == f.activationDtype || f.poolDtype == TRTFORGE_FLOAT8_E4M3);
}

trtforge_paged_attention_args argsOf(
    AttentionFields const& f, AttentionShape const& s, AttentionTensors const& t)
{
    trtforge_paged_attention_args a{};
    a.struct_size = sizeof(a);
    a.query = t.query;
    a.key = t.key;
    a.value = t.value;
    a.kv_pool = t.kvPool;
    a.output = t.output;
    a.query_start = t.queryStart;
    a.sequence_lengths = t.sequenceLengths;
    a.block_table = t.blockTable;
    a.tree_mask = t.treeMask;
    a.sinks = t.sinks;
    a.query_stride = t.queryStride;
    a.key_stride = t.keyStride;
    a.value_stride = t.valueStride;
    a.output_stride = t.outputStride;
    a.block_table_stride = t.blockTableStride;
    a.tree_mask_stride = t.treeMaskStride;
    a.num_tokens = s.tokens;
    a.num_requests = s.requests;
    a.max_blocks = s.maxBlocks;
    a.num_blocks = s.numBlocks;
    a.block_size = f.blockSize;
    a.num_heads = f.numHeads;
    a.num_kv_heads = f.numKvHeads;
    a.head_size = f.headSize;
    a.activation_dtype = f.activationDtype;
    a.pool_dtype = f.poolDtype;
    a.sliding_window = f.slidingWindow;
    a.tree_mask_width = s.treeMaskWidth;
    a.scale = f.scale != 0.0F || f.headSize <= 0 ? f.scale : 1.0F / std::sqrt(static_cast<float>(f.headSize));
    a.soft_cap = f.softCap;
    a.k_scale = 1.0F;
    a.v_scale = 1.0F;
    return a;
}

void checkFields(AttentionFields const& f)
{
    static int32_t const zero = 0;
    AttentionTensors tensors;
    tensors.queryStart = &zero;
    checkAttentionShapes(argsOf(f, AttentionShape{}, tensors));
    require(f.numHeads / f.numKvHeads <= 128, TRTFORGE_BAD_HEADS, "%d heads on %d kv heads: at most 128 may share one",
        f.numHeads, f.numKvHeads);
}

//! A mask of one column stands for plain causality.
bool masked(AttentionShape const& s, AttentionTensors const& t)
{
    return t.treeMask != nullptr && s.treeMaskWidth > 1;
}

void checkCall(AttentionFields const& f, AttentionShape const& s, AttentionTensors const& t)
{
    checkFields(f);
    trtforge_paged_attention_args const a = argsOf(f, s, t);
    checkAttentionShapes(a);
    require(s.tokens == 0 || s.requests > 0, TRTFORGE_BAD_QUERY_START, "%lld tokens of no request",
        static_cast<long long>(s.tokens));
    require(s.maxNewTokens >= 0, TRTFORGE_BAD_SHAPE, "maxNewTokens is %d", s.maxNewTokens);
    require(s.tokens == 0 || (s.maxBlocks > 0 && s.numBlocks > 0), TRTFORGE_BAD_SHAPE,
        "%lld tokens, but the block table has %d columns and the pool %d blocks", static_cast<long long>(s.tokens),
        s.maxBlocks, s.numBlocks);
    require(!masked(s, t) || s.maxNewTokens <= s.treeMaskWidth, TRTFORGE_BAD_TREE_MASK,
        "requests have up to %d new tokens but the tree mask is %d wide", s.maxNewTokens, s.treeMaskWidth);
    int64_t const unit = f.activationDtype == TRTFORGE_FLOAT32 ? 4 : 8; // elements in sixteen bytes
    bool const even = s.tokens <= 1
        || (t.queryStride % unit == 0 && t.keyStride % unit == 0 && t.valueStride % unit == 0
            && t.outputStride % unit == 0);
    require(even, TRTFORGE_BAD_STRIDE, "row strides %lld, %lld, %lld, %lld: rows must start at multiples of 16 bytes",
        static_cast<long long>(t.queryStride), static_cast<long long>(t.keyStride),
        static_cast<long long>(t.valueStride), static_cast<long long>(t.outputStride));
    requireAligned(t.query, "query");
    requireAligned(t.key, "key");
    requireAligned(t.value, "value");
    requireAligned(t.output, "output");
    requireAligned(t.kvPool, "kv_pool");
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
int64_t contextOfShape(AttentionFields const& f, AttentionShape const& s)
{
    int64_t const capacity = static_cast<int64_t>(s.maxBlocks) * f.blockSize;
    int64_t const window = static_cast<int64_t>(f.slidingWindow) + kSHORT_ROWS;
    return f.slidingWindow > 0 && window < capacity ? window : capacity;
}

Sizes sizesOf(AttentionFields const& f, AttentionShape const& s, Device const& device)
{
    int64_t const group = f.numHeads / f.numKvHeads;
    int64_t const requests = s.requests < s.tokens ? s.requests : s.tokens;
    int64_t const context = contextOfShape(f, s);
    Sizes z;
    z.shortTasks.rows = kSHORT_ROWS;
    int64_t shortTasks = requests;
    int64_t longTasks = 0;
    if (!onTensorCores(f))
    {
        shortTasks += s.tokens * group / kSHORT_ROWS;
    }
    else if (s.maxNewTokens == 0 || s.maxNewTokens * group > kSHORT_ROWS)
    {
        z.longTasks.rows = longRows(f.headSize);
        int64_t const fewest = kSHORT_ROWS / group + 1; // new tokens of a request that is long
        int64_t const longRequests = requests < s.tokens / fewest ? requests : s.tokens / fewest;
        longTasks = longRequests > 0 ? s.tokens * group / z.longTasks.rows + longRequests : 0;
    }
    require(shortTasks <= 0x7fffffff && longTasks <= 0x7fffffff, TRTFORGE_BAD_SHAPE, "%lld tokens are too many",
        static_cast<long long>(s.tokens));
    z.shortTasks.capacity = static_cast<int32_t>(shortTasks);
    z.longTasks.capacity = static_cast<int32_t>(longTasks);
    z.shortTasks.splits = splitsOf(shortTasks, f.numKvHeads, context, device.multiprocessors, kSHORT_RULE);
    z.longTasks.splits = splitsOf(longTasks, f.numKvHeads, context, device.multiprocessors, kLONG_RULE);
    return z;
}

int64_t partialRows(AttentionFields const& f, TaskList const& list)
{
    return list.splits > 1 ? static_cast<int64_t>(list.capacity) * f.numKvHeads * list.splits * list.rows : 0;
}

//! Places the lists in the workspace (null: only counts) and returns its bytes.
size_t placeLists(AttentionFields const& f, char* base, Sizes& z)
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
        size_t const rows = static_cast<size_t>(partialRows(f, *list));
        list->partialOut = reinterpret_cast<float*>(place(rows * static_cast<size_t>(f.headSize) * sizeof(float)));
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

AttentionParams paramsOf(
    AttentionFields const& f, AttentionShape const& s, AttentionTensors const& t, Sizes const& z)
{
    AttentionParams p;
    p.tensors = t;
    if (f.poolDtype != TRTFORGE_FLOAT8_E4M3)
    {
        p.tensors.kScale = nullptr; // 1 by contract
        p.tensors.vScale = nullptr;
    }
    if (!masked(s, t))
    {
        p.tensors.treeMask = nullptr;
    }
    int64_t const capacity = static_cast<int64_t>(s.maxBlocks) * f.blockSize;
    p.capacity = capacity < 0x7fffffff ? static_cast<int32_t>(capacity) : 0x7fffffff;
    p.tokens = static_cast<int32_t>(s.tokens);
    p.requests = s.requests;
    p.maxBlocks = s.maxBlocks;
    p.numBlocks = s.numBlocks;
    p.treeMaskWidth = s.treeMaskWidth;
    p.maxNewTokens = s.maxNewTokens;
    p.numHeads = f.numHeads;
    p.numKvHeads = f.numKvHeads;
    p.group = f.numHeads / f.numKvHeads;
    p.headSize = f.headSize;
    p.blockSize = f.blockSize;
    p.blockShift = log2Of(f.blockSize);
    p.activationDtype = f.activationDtype;
    p.slidingWindow = f.slidingWindow;
    p.scale = f.scale != 0.0F ? f.scale : 1.0F / std::sqrt(static_cast<float>(f.headSize));
    p.softCap = f.softCap;
    p.shortTasks = z.shortTasks;
    p.longTasks = z.longTasks;
    return p;
}

void launchWrite(AttentionParams const& p, AttentionFields const& f, Device const& device, Stream stream)
{
    int64_t const items = static_cast<int64_t>(p.tokens) * p.numKvHeads * p.headSize / 4;
    int64_t const blocks = (items + kSTEP_THREADS - 1) / kSTEP_THREADS;
    int64_t const most = static_cast<int64_t>(device.multiprocessors) * 16;
    LaunchShape const shape{blocks < most ? blocks : most, 1, 1, kSTEP_THREADS, kSTEP_THREADS * 8};
    auto const start = [&](void (*kernel)(AttentionParams const))
    { launch<AttentionParams>(kernel, shape, stream, p); };
    switch (f.poolDtype)
    {
    case TRTFORGE_FLOAT32: start(&attentionWrite<float>); break;
    case TRTFORGE_BFLOAT16: start(&attentionWrite<Bf16>); break;
    case TRTFORGE_FLOAT16: start(&attentionWrite<Fp16>); break;
    default: start(&attentionWrite<E4m3>); break;
    }
}

void launchAttend(AttentionParams const& p, AttentionFields const& f, TaskKind kind, Stream stream)
{
    bool const fp8 = f.poolDtype == TRTFORGE_FLOAT8_E4M3;
    if (!onTensorCores(f))
    {
        launchSimt(p, f.poolDtype, stream);
    }
    else if (f.activationDtype == TRTFORGE_BFLOAT16)
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
        LaunchShape const merge{list.capacity, p.numKvHeads, 1, kSTEP_THREADS, 0};
        launch<AttentionParams, TaskList>(&attentionMerge, merge, stream, p, list);
    }
}

} // namespace

Status checkAttentionFields(AttentionFields const& fields) noexcept
{
    return answered([&] { checkFields(fields); });
}

Status checkAttentionCall(
    AttentionFields const& fields, AttentionShape const& shape, AttentionTensors const& tensors) noexcept
{
    return answered([&] { checkCall(fields, shape, tensors); });
}

size_t attentionWorkspace(AttentionFields const& fields, AttentionShape const& shape, Device const& device) noexcept
{
    size_t bytes = 0;
    answered(
        [&]
        {
            checkFields(fields);
            Sizes z = sizesOf(fields, shape, device);
            bytes = placeLists(fields, nullptr, z);
        });
    return bytes;
}

size_t attentionWorkspaceBound(
    AttentionFields const& fields, AttentionShape const& limits, Device const& device) noexcept
{
    size_t bytes = 0;
    answered(
        [&]
        {
            checkFields(fields);
            Sizes z = sizesOf(fields, limits, device);
            int64_t const context = contextOfShape(fields, limits);
            size_t const row = static_cast<size_t>(fields.headSize) * sizeof(float);
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
                int64_t const bySplits = static_cast<int64_t>(kind.list.capacity) * fields.numKvHeads
                    * (cap < kMAX_SPLITS ? cap : kMAX_SPLITS);
                size_t const rows = static_cast<size_t>((bySplits < 2 * wanted ? bySplits : 2 * wanted)
                    * kind.list.rows);
                bytes += aligned256(static_cast<size_t>(kind.list.capacity) * sizeof(Task)) + aligned256(rows * row)
                    + aligned256(rows * 2 * sizeof(float));
            }
        });
    return bytes;
}

Status pagedAttention(AttentionFields const& fields, AttentionShape const& shape, AttentionTensors const& tensors,
    void* workspace, size_t workspaceBytes, Device const& device, Stream stream) noexcept
{
    return answered(
        [&]
        {
            checkCall(fields, shape, tensors);
            Sizes z = sizesOf(fields, shape, device);
            size_t const needed = placeLists(fields, static_cast<char*>(workspace), z);
            require(workspace != nullptr && workspaceBytes >= needed, TRTFORGE_BAD_SHAPE,
                "the workspace has %zu bytes, this call needs %zu", workspace == nullptr ? size_t{0} : workspaceBytes,
                needed);
            require(reinterpret_cast<uintptr_t>(workspace) % 256 == 0, TRTFORGE_BAD_STRIDE,
                "the workspace must be aligned to 256 bytes");
            AttentionParams const p = paramsOf(fields, shape, tensors, z);
            if (tensors.status != nullptr)
            {
                LaunchShape const one{1, 1, 1, kSTEP_THREADS, kSTEP_THREADS * 4};
                launch<AttentionParams>(&attentionCheck, one, stream, p);
            }
            if (shape.tokens == 0)
            {
                return;
            }
            launchWrite(p, fields, device, stream);
            launchAttend(p, fields, TaskKind::kSHORT, stream);
            if (p.longTasks.capacity > 0)
            {
                launchAttend(p, fields, TaskKind::kLONG, stream);
            }
        });
}

} // namespace cuda
} // namespace trtforge
