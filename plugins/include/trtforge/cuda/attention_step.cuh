//! \file attention_step.cuh
//! \brief The kernels around attention: check of indices, plan and writing of keys and values, merging of splits.
#ifndef TRTFORGE_CUDA_ATTENTION_STEP_CUH
#define TRTFORGE_CUDA_ATTENTION_STEP_CUH

#include "trtforge/cuda/attention_rows.cuh"

namespace trtforge
{
namespace cuda
{

constexpr int kSTEP_THREADS = 256;

//! The first broken rule of request b as (code, numbers); code 0 when it holds. The rules of validate.hpp.
TF_DEVICE int32_t faultOf(AttentionParams const& p, int32_t b, int32_t (&numbers)[4])
{
    AttentionArgs const& t = p.args;
    int32_t const begin = t.query_start[b];
    int32_t const end = t.query_start[b + 1];
    numbers[0] = b;
    numbers[1] = end;
    numbers[2] = begin;
    numbers[3] = p.tokens;
    bool const lastWrong = b + 1 == t.num_requests && end != p.tokens;
    bool const promised = p.maxNewTokens == 0 || end - begin <= p.maxNewTokens;
    if (!promised || (b == 0 && begin != 0) || end < begin || end > p.tokens || begin < 0 || lastWrong)
    {
        return TRTFORGE_BAD_QUERY_START;
    }
    if (begin == end)
    {
        return 0;
    }
    int32_t const length = t.sequence_lengths[b];
    int32_t const fresh = end - begin;
    numbers[1] = length;
    numbers[2] = fresh;
    numbers[3] = t.max_blocks;
    if (length < fresh || length > static_cast<int64_t>(t.max_blocks) * t.block_size)
    {
        return TRTFORGE_BAD_SEQUENCE_LENGTH;
    }
    numbers[3] = t.tree_mask_width;
    if (t.tree_mask != nullptr && fresh > t.tree_mask_width)
    {
        return TRTFORGE_BAD_TREE_MASK;
    }
    int32_t const* row = t.block_table + b * t.block_table_stride;
    int32_t const base = length - fresh;
    int32_t const first = base - t.sliding_window + 1;
    int32_t const visible = t.sliding_window > 0 && first > 0 ? first : 0;
    for (int32_t i = visible >> p.blockShift; i <= (length - 1) >> p.blockShift; ++i)
    {
        if (row[i] < 0 || row[i] >= t.num_blocks)
        {
            numbers[1] = i;
            numbers[2] = row[i];
            numbers[3] = t.num_blocks;
            return TRTFORGE_BAD_BLOCK_TABLE;
        }
    }
    return 0;
}

//! One block. Writes status[0] = 0, or the fault of the first request that has one.
TF_KERNEL(kSTEP_THREADS, 1) attentionCheck(AttentionParams const p)
{
    int32_t* lowest = reinterpret_cast<int32_t*>(sharedMemory()); // one a thread
    int32_t numbers[4];
    int32_t code = 0;
    int32_t mine = p.args.num_requests;
    for (int32_t b = threadIndex(); b < p.args.num_requests && code == 0; b += blockThreads())
    {
        code = faultOf(p, b, numbers);
        mine = code != 0 ? b : mine;
    }
    lowest[threadIndex()] = mine;
    syncBlock();
    int32_t first = p.args.num_requests;
    for (int i = 0; i < blockThreads(); ++i)
    {
        first = lowest[i] < first ? lowest[i] : first;
    }
    bool const noRequests = p.args.num_requests == 0 && p.tokens != 0;
    if (threadIndex() == 0 && first == p.args.num_requests)
    {
        p.status[0] = noRequests ? TRTFORGE_BAD_QUERY_START : 0;
        p.status[1] = 0;
        p.status[2] = 0;
        p.status[3] = 0;
        p.status[4] = p.tokens;
    }
    if (code != 0 && mine == first)
    {
        p.status[0] = code;
        for (int i = 0; i < 4; ++i)
        {
            p.status[1 + i] = numbers[i];
        }
    }
}

//! Request that token t belongs to: the last one that starts at or before it and is not empty.
TF_DEVICE int32_t requestOf(int32_t const* start, int32_t requests, int32_t token)
{
    int32_t low = 0;
    int32_t high = requests - 1;
    while (low < high)
    {
        int32_t const middle = (low + high + 1) / 2;
        if (start[middle] <= token)
        {
            low = middle;
        }
        else
        {
            high = middle - 1;
        }
    }
    return low;
}

//! Exclusive sum over the block's threads of two counts at once; `total` gets the whole sums.
TF_DEVICE void blockScan(int32_t* shared, int32_t (&mine)[2], int32_t (&total)[2])
{
    int const t = threadIndex();
    int const n = blockThreads();
    int32_t const own[2] = {mine[0], mine[1]};
    shared[t] = own[0];
    shared[n + t] = own[1];
    syncBlock();
    for (int step = 1; step < n; step *= 2)
    {
        int32_t const before[2] = {t < step ? 0 : shared[t - step], t < step ? 0 : shared[n + t - step]};
        syncBlock();
        shared[t] += before[0];
        shared[n + t] += before[1];
        syncBlock();
    }
    for (int kind = 0; kind < 2; ++kind)
    {
        mine[kind] = shared[kind * n + t] - own[kind];
        total[kind] = shared[kind * n + n - 1];
    }
    syncBlock();
}

//! Writes both task lists: short requests one task each, long ones their last rows (which see most keys) first.
TF_DEVICE void planTasks(AttentionParams const& p)
{
    int32_t* shared = reinterpret_cast<int32_t*>(sharedMemory());
    int32_t offset[2] = {0, 0};
    for (int32_t from = 0; from < p.args.num_requests; from += blockThreads())
    {
        int32_t const b = from + threadIndex();
        int32_t rows = 0;
        if (b < p.args.num_requests)
        {
            rows = contextOf(p, b).fresh * p.group;
        }
        bool const isLong = p.longTasks.capacity > 0 && rows > p.shortTasks.rows;
        TaskList const& list = isLong ? p.longTasks : p.shortTasks;
        int32_t const wanted = (rows + list.rows - 1) / list.rows;
        int32_t const pieces = wanted < list.capacity ? wanted : list.capacity; // more are of offsets that break the rules
        int32_t at[2] = {isLong ? 0 : pieces, isLong ? pieces : 0};
        int32_t total[2];
        blockScan(shared, at, total);
        for (int32_t i = 0; i < pieces; ++i)
        {
            int32_t const index = offset[isLong ? 1 : 0] + at[isLong ? 1 : 0] + i;
            if (index < list.capacity)
            {
                list.tasks[index] = Task{b, (pieces - 1 - i) * list.rows};
            }
        }
        offset[0] = heldIn(offset[0] + total[0], 0, p.shortTasks.capacity);
        offset[1] = heldIn(offset[1] + total[1], 0, p.longTasks.capacity);
    }
    if (threadIndex() == 0)
    {
        *p.shortTasks.count = offset[0];
        *p.longTasks.count = offset[1];
    }
}

//! Stores the step's keys and values; block 0 writes the plan besides.
template <typename Pool>
TF_KERNEL(kSTEP_THREADS, 1) attentionWrite(AttentionParams const p)
{
    if (refused(p.status))
    {
        return;
    }
    if (blockX() == 0)
    {
        planTasks(p);
    }
    AttentionArgs const& t = p.args;
    int32_t const planeElements = p.args.num_kv_heads * p.args.block_size * p.args.head_size;
    int32_t const eights = p.args.num_kv_heads * p.args.head_size / 8;
    int64_t const count = static_cast<int64_t>(p.tokens) * eights * 2;
    int64_t const step = static_cast<int64_t>(gridX()) * blockThreads();
    for (int64_t i = static_cast<int64_t>(blockX()) * blockThreads() + threadIndex(); i < count; i += step)
    {
        int32_t const column = static_cast<int32_t>(i % eights) * 8;
        int32_t const plane = static_cast<int32_t>(i / eights % 2);
        int32_t const token = static_cast<int32_t>(i / eights / 2);
        int32_t const request = requestOf(t.query_start, p.args.num_requests, token);
        Context const c = contextOf(p, request);
        int32_t const fresh = token - c.firstToken;
        if (fresh < 0 || fresh >= c.fresh)
        {
            continue; // of no request: its offsets break the rules
        }
        int32_t const position = c.base + fresh;
        Pool* row = PoolRows<Pool>(p, request, column / p.args.head_size).key(position) + plane * planeElements;
        float x[8];
        loadEight(plane == 0 ? t.key : t.value, token * (plane == 0 ? t.key_stride : t.value_stride) + column,
            p.args.activation_dtype, x);
        float const* scale = plane == 0 ? p.kScale : p.vScale;
        storeEight(row + column % p.args.head_size, x, scale == nullptr ? 1.0F : *scale);
    }
}

//! Grid (tasks, K): merges the splits of each row, in their order.
TF_KERNEL(kSTEP_THREADS, 1) attentionMerge(AttentionParams const p, TaskList const list)
{
    if (refused(p.status) || blockX() >= *list.count)
    {
        return;
    }
    Task const task = list.tasks[blockX()];
    Context const c = contextOf(p, task.request);
    int32_t const left = c.fresh * p.group - task.row;
    int32_t const rows = left < list.rows ? left : list.rows;
    int64_t const first = partialSlot(p, list, blockX(), blockY(), 0) * list.rows;
    for (int32_t i = threadIndex(); i < rows * p.args.head_size; i += blockThreads())
    {
        int32_t const row = i / p.args.head_size;
        int32_t const column = i % p.args.head_size;
        float maximum = -INFINITY;
        for (int32_t s = 0; s < list.splits; ++s)
        {
            maximum = fmaxf(maximum, list.partialStats[(first + s * list.rows + row) * 2]);
        }
        float sum = 0.0F;
        float out = 0.0F;
        for (int32_t s = 0; s < list.splits; ++s)
        {
            int64_t const at = first + s * list.rows + row;
            float const part = list.partialStats[at * 2 + 1];
            float const own = list.partialStats[at * 2];
            if (own == -INFINITY && part == 0.0F)
            {
                continue; // this split saw no key; its values were not written
            }
            float const weight = weightOf(own, maximum);
            sum += weight * part;
            out += weight * list.partialOut[at * p.args.head_size + column];
        }
        int32_t const head = blockY() * p.group + (task.row + row) % p.group;
        storeOutput(p, outputRow(p, c, blockY(), task.row + row) + column, out * normalizer(p, maximum, sum, head));
    }
}

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_ATTENTION_STEP_CUH
