//! \file paged_attention.cpp
//! \brief PagedAttention on the host: checks, cuts a step into tasks, and runs them over OpenMP threads.
//!
//! How work is cut decides only the speed. A task covers some query tokens of one request and one kv head; when a
//! request's new tokens fit one task (decode, verification) its context is also cut into chunks of kCHUNK keys, so
//! that a single long request keeps every thread busy. Partial results are merged in chunk order either way, by the
//! thread that finishes a row's last chunk.
//!
//! A step waits for its threads once, at the end: on a machine that is busy with something else, every further
//! barrier costs a turn of the system's scheduler (milliseconds).
#include "runtime.hpp"

#include <atomic>
#include <vector>

namespace trtforge
{
namespace
{

//! Below this many multiply-adds a second thread costs more than it brings.
constexpr int64_t kPARALLEL_WORK = 400000;
//! Elements from which writing keys and values is shared by the threads, at the price of a second barrier.
constexpr int64_t kPARALLEL_WRITE = 131072;

struct Plan
{
    std::vector<AttentionTask> tasks;
    std::vector<AttentionMerge> merges;
    std::vector<int32_t> mergeOf; //!< index into merges of a task; -1: none
    std::vector<int32_t> pending; //!< unfinished chunks of a merge
    int64_t partialFloats{0};
    int64_t work{0};
};

thread_local Plan tPlan;

void planRequest(AttentionCall const& call, KernelTable const& table, int32_t request, int32_t tokensPerTask, Plan& plan)
{
    trtforge_paged_attention_args const& a = *call.args;
    int32_t const fresh = a.query_start[request + 1] - a.query_start[request];
    if (fresh == 0)
    {
        return;
    }
    int32_t const length = a.sequence_lengths[request];
    int32_t const base = length - fresh;
    int32_t const firstKey = firstVisible(a, base);
    plan.work += static_cast<int64_t>(fresh) * (length - firstKey) * a.num_heads * a.head_size * 2;
    bool const split = fresh <= tokensPerTask && (length - 1) / kCHUNK > firstKey / kCHUNK;
    if (split)
    {
        int32_t const begin = firstKey / kCHUNK;
        int32_t const end = (length - 1) / kCHUNK + 1;
        int64_t const floats = table.partialFloats(call, fresh * call.group);
        for (int32_t k = 0; k < a.num_kv_heads; ++k)
        {
            int32_t const merge = static_cast<int32_t>(plan.merges.size());
            plan.merges.push_back(AttentionMerge{request, k, 0, fresh, end - begin, plan.partialFloats});
            plan.pending.push_back(end - begin);
            for (int32_t chunk = begin; chunk < end; ++chunk)
            {
                plan.tasks.push_back(AttentionTask{request, k, 0, fresh, chunk, chunk + 1, plan.partialFloats});
                plan.mergeOf.push_back(merge);
                plan.partialFloats += floats;
            }
        }
        return;
    }
    // Later tokens see more keys: long tasks first, so that threads end together.
    int32_t const pieces = (fresh + tokensPerTask - 1) / tokensPerTask;
    for (int32_t piece = pieces - 1; piece >= 0; --piece)
    {
        int32_t const token = piece * tokensPerTask;
        int32_t const count = fresh - token < tokensPerTask ? fresh - token : tokensPerTask;
        int32_t const highest = a.tree_mask != nullptr ? length : base + token + count;
        int32_t const begin = firstVisible(a, a.tree_mask != nullptr ? base : base + token) / kCHUNK;
        int32_t const end = (highest - 1) / kCHUNK + 1;
        for (int32_t k = 0; k < a.num_kv_heads; ++k)
        {
            plan.tasks.push_back(AttentionTask{request, k, token, count, begin, end, -1});
            plan.mergeOf.push_back(-1);
        }
    }
}

void runTask(AttentionCall const& call, KernelTable const& table, Plan& plan, size_t index, char* scratch)
{
    table.attentionTask(call, plan.tasks[index], scratch);
    int32_t const merge = plan.mergeOf[index];
    if (merge >= 0 && __atomic_sub_fetch(&plan.pending[static_cast<size_t>(merge)], 1, __ATOMIC_ACQ_REL) == 0)
    {
        table.attentionMerge(call, plan.merges[static_cast<size_t>(merge)], scratch);
    }
}

void runPlan(
    AttentionCall const& call, KernelTable const& table, Plan& plan, char* scratch, size_t each, int threads)
{
    int64_t const tokens = call.args->num_tokens;
    size_t const tasks = plan.tasks.size();
    if (threads <= 1)
    {
        table.attentionWrite(call, 0, tokens);
        for (size_t t = 0; t < tasks; ++t)
        {
            runTask(call, table, plan, t, scratch);
        }
        return;
    }
    bool const share = 2 * tokens * call.args->num_kv_heads * call.args->head_size >= kPARALLEL_WRITE;
    if (!share)
    {
        table.attentionWrite(call, 0, tokens);
    }
    std::atomic<size_t> counter{0};
#pragma omp parallel num_threads(threads)
    {
        int64_t const n = omp_get_num_threads();
        int64_t const i = omp_get_thread_num();
        char* mine = scratch + static_cast<size_t>(i) * each;
        if (share)
        {
            table.attentionWrite(call, tokens * i / n, tokens * (i + 1) / n);
#pragma omp barrier
        }
        for (size_t t = counter++; t < tasks; t = counter++)
        {
            runTask(call, table, plan, t, mine);
        }
    }
}

void pagedAttention(trtforge_paged_attention_args const* args)
{
    checkStruct(args);
    checkAttentionShapes(*args);
    checkAttentionIndices(*args);
    if (args->num_tokens == 0)
    {
        return;
    }
    trtforge_paged_attention_args plain = *args;
    if (!hasTreeMask(plain))
    {
        plain.tree_mask = nullptr; // the kernels read a mask's bytes
        args = &plain;
    }
    KernelTable const& table = kernels();
    AttentionCall call{};
    call.args = args;
    call.group = args->num_heads / args->num_kv_heads;
    call.paddedHead = (args->head_size + 15) / 16 * 16;
    int32_t const tokensPerTask = kROWS / call.group > 1 ? kROWS / call.group : 1;
    call.maxRows = tokensPerTask * call.group;

    Plan& plan = tPlan;
    plan.tasks.clear();
    plan.merges.clear();
    plan.mergeOf.clear();
    plan.pending.clear();
    plan.partialFloats = 0;
    plan.work = 0;
    for (int32_t b = 0; b < args->num_requests; ++b)
    {
        planRequest(call, table, b, tokensPerTask, plan);
    }
    int const threads = plan.tasks.size() > 1 ? threadsFor(plan.work, kPARALLEL_WORK) : 1;
    size_t const each = (table.attentionScratch(call) + 63) / 64 * 64;
    char* scratch = static_cast<char*>(threadMemory(0, each * static_cast<size_t>(threads)));
    call.partials = static_cast<float*>(threadMemory(1, static_cast<size_t>(plan.partialFloats) * sizeof(float)));
    runPlan(call, table, plan, scratch, each, threads);
}

} // namespace
} // namespace trtforge

extern "C" int trtforge_paged_attention(trtforge_paged_attention_args const* args)
{
    return trtforge::guarded([&] { trtforge::pagedAttention(args); });
}

extern "C" int trtforge_copy_blocks(trtforge_copy_blocks_args const* args)
{
    using namespace trtforge;
    return guarded(
        [&]
        {
            checkStruct(args);
            trtforge_copy_blocks_args const& a = *args;
            require(a.block_bytes > 0 && a.num_blocks >= 0 && a.count >= 0, TRTFORGE_BAD_SHAPE,
                "block_bytes is %lld, num_blocks %lld, count %lld", static_cast<long long>(a.block_bytes),
                static_cast<long long>(a.num_blocks), static_cast<long long>(a.count));
            require(a.count == 0 || (a.kv_pool != nullptr && a.pairs != nullptr), TRTFORGE_NULL_POINTER,
                "kv_pool or pairs is null");
            for (int64_t i = 0; i < 2 * a.count; ++i)
            {
                require(a.pairs[i] >= 0 && a.pairs[i] < a.num_blocks, TRTFORGE_BAD_INDEX,
                    "pair %lld names block %lld, outside the pool of %lld blocks", static_cast<long long>(i / 2),
                    static_cast<long long>(a.pairs[i]), static_cast<long long>(a.num_blocks));
            }
            // Each thread copies its own slice of every pair, in order: a chain a->b, b->c means what it says.
            int const threads = threadsFor(a.count * a.block_bytes, 1 << 20);
            parallelRanges((a.block_bytes + 63) / 64, threads,
                [&](int64_t begin, int64_t end)
                {
                    int64_t const from = begin * 64;
                    int64_t const to = end * 64 < a.block_bytes ? end * 64 : a.block_bytes;
                    char* pool = reinterpret_cast<char*>(a.kv_pool);
                    for (int64_t i = 0; i < a.count; ++i)
                    {
                        __builtin_memmove(pool + a.pairs[2 * i + 1] * a.block_bytes + from,
                            pool + a.pairs[2 * i] * a.block_bytes + from, static_cast<size_t>(to - from));
                    }
                });
        });
}
