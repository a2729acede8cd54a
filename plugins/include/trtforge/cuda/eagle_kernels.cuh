//! \file eagle_kernels.cuh
//! \brief EagleTreeBuild and EagleAccept: one block a row of draft logits, one block a request for the rest.
#ifndef TRTFORGE_CUDA_EAGLE_KERNELS_CUH
#define TRTFORGE_CUDA_EAGLE_KERNELS_CUH

#include "trtforge/cuda/launchers.hpp"
#include "trtforge/cuda/numeric.cuh"
#include "trtforge/random.hpp"
#include "trtforge/tree_layout.hpp"

namespace trtforge
{
namespace cuda
{

constexpr int kEAGLE_THREADS = 256;

//! A value and where it stands; the larger value wins, of equal ones the lower index.
struct Ranked
{
    float value;
    int32_t index;
};

TF_DEVICE bool beats(Ranked const& a, Ranked const& b)
{
    return a.value > b.value || (a.value == b.value && a.index < b.index);
}

//! The block's best; every thread gets it. `shared` holds one entry a warp.
TF_DEVICE Ranked blockBest(Ranked mine, Ranked* shared)
{
#pragma unroll
    for (int mask = kWARP_SIZE / 2; mask > 0; mask /= 2)
    {
        Ranked other;
        other.value = shuffleXor(mine.value, mask);
        other.index = shuffleXor(mine.index, mask);
        mine = beats(other, mine) ? other : mine;
    }
    syncBlock();
    if (threadIndex() % kWARP_SIZE == 0)
    {
        shared[threadIndex() / kWARP_SIZE] = mine;
    }
    syncBlock();
    for (int w = 0; w < blockThreads() / kWARP_SIZE; ++w)
    {
        mine = beats(shared[w], mine) ? shared[w] : mine;
    }
    return mine;
}

TF_DEVICE float blockSum(float mine, float* shared)
{
    mine = laneSum<kWARP_SIZE>(mine);
    syncBlock();
    if (threadIndex() % kWARP_SIZE == 0)
    {
        shared[threadIndex() / kWARP_SIZE] = mine;
    }
    syncBlock();
    float sum = 0.0F;
    for (int w = 0; w < blockThreads() / kWARP_SIZE; ++w)
    {
        sum += shared[w];
    }
    return sum;
}

struct TreeParams
{
    TreeArgs args;
    int32_t rows{0};       //!< R of this level
    int32_t candidates{0}; //!< C
    int32_t offset{0};     //!< first candidate of this level
};

//! Only finite logits count: NaN and infinities stand for "never".
TF_DEVICE float finiteOr(float x)
{
    return fabsf(x) <= 3.4028235e38F ? x : -INFINITY;
}

//! Grid (R, B): children of one expanded node. Writes this level's candidates.
TF_KERNEL(kEAGLE_THREADS, 1) treeChildren(TreeParams const p)
{
    TreeArgs const& t = p.args;
    Ranked* shared = reinterpret_cast<Ranked*>(sharedMemory());
    int32_t const row = blockX();
    int32_t const request = blockY();
    int32_t const topK = t.top_k;
    int64_t const state = static_cast<int64_t>(request) * p.candidates;
    int32_t const first = p.offset + row * topK;
    int32_t const parent = t.level == 0 ? -1 : t.frontier[static_cast<int64_t>(request) * t.expand + row];
    if (t.level > 0 && (parent < 0 || parent >= p.offset)) // what an earlier level did not make is no node
    {
        for (int32_t i = threadIndex(); i < topK; i += blockThreads())
        {
            t.candidate_tokens[state + first + i] = 0;
            t.candidate_parents[state + first + i] = -1;
            t.candidate_scores[state + first + i] = -INFINITY;
        }
        return;
    }
    int64_t const base = (static_cast<int64_t>(request) * p.rows + row) * t.draft_logits_stride;
    // Each thread keeps the best of its own share, sorted; indices rise, so equal values keep their order.
    Ranked own[kMAX_TREE_CHILDREN];
#pragma unroll
    for (int i = 0; i < kMAX_TREE_CHILDREN; ++i)
    {
        own[i] = Ranked{-INFINITY, 0x7fffffff};
    }
    for (int32_t v = threadIndex(); v < t.vocabulary; v += blockThreads())
    {
        Ranked next{finiteOr(loadElement(t.draft_logits, base + v, t.logits_dtype)), v};
        if (beats(next, own[kMAX_TREE_CHILDREN - 1]))
        {
#pragma unroll
            for (int i = 0; i < kMAX_TREE_CHILDREN; ++i)
            {
                if (beats(next, own[i]))
                {
                    Ranked const pushed = own[i];
                    own[i] = next;
                    next = pushed;
                }
            }
        }
    }
    Ranked const best = blockBest(own[0], shared);
    float sum = 0.0F;
    for (int32_t v = threadIndex(); v < t.vocabulary; v += blockThreads())
    {
        float const x = finiteOr(loadElement(t.draft_logits, base + v, t.logits_dtype));
        sum += x == -INFINITY ? 0.0F : expf(x - best.value);
    }
    float const logSum = logf(blockSum(sum, reinterpret_cast<float*>(shared)));
    float const parentScore = parent < 0 ? 0.0F : t.candidate_scores[state + parent];
    int taken = 0;
    for (int32_t i = 0; i < topK; ++i)
    {
        Ranked head{-INFINITY, 0x7fffffff};
#pragma unroll
        for (int j = 0; j < kMAX_TREE_CHILDREN; ++j)
        {
            head = j == taken ? own[j] : head;
        }
        Ranked const winner = blockBest(head, shared);
        taken += winner.index == head.index && head.index != 0x7fffffff ? 1 : 0;
        if (threadIndex() == 0)
        {
            bool const none = winner.value == -INFINITY;
            int32_t const token = winner.index;
            t.candidate_tokens[state + first + i]
                = token + (t.draft_to_target != nullptr && token < t.vocabulary ? t.draft_to_target[token] : 0);
            t.candidate_parents[state + first + i] = parent;
            t.candidate_scores[state + first + i]
                = none ? -INFINITY : parentScore + (winner.value - best.value - logSum);
        }
    }
}

//! How many of candidates [begin, end) stand before candidate i.
TF_DEVICE int32_t rankOf(float const* scores, int32_t begin, int32_t end, int32_t i)
{
    Ranked const mine{scores[i], i};
    int32_t rank = 0;
    for (int32_t j = begin; j < end; ++j)
    {
        rank += beats(Ranked{scores[j], j}, mine) ? 1 : 0;
    }
    return rank;
}

//! Candidate of a static tree's node, from its parent's place among the expanded nodes of its level.
struct StaticPlace
{
    int32_t candidate;
    int32_t depth;
};

//! A node's parent; one that does not stand before it counts as the root, so that every walk ends.
TF_DEVICE int32_t parentOf(int32_t const* parents, int32_t node)
{
    return heldIn(parents[node], 0, node) % node;
}

TF_DEVICE int32_t depthOf(int32_t const* parents, int32_t node)
{
    int32_t depth = 0;
    for (int32_t n = node; n > 0; n = parentOf(parents, n))
    {
        ++depth;
    }
    return depth;
}

TF_DEVICE bool hasChild(int32_t const* parents, int32_t total, int32_t node)
{
    for (int32_t i = node + 1; i < total; ++i)
    {
        if (parents[i] == node)
        {
            return true;
        }
    }
    return false;
}

//! Place of an expanded node among those of its depth.
TF_DEVICE int32_t slotOf(int32_t const* parents, int32_t total, int32_t node)
{
    int32_t const depth = depthOf(parents, node);
    int32_t slot = 0;
    for (int32_t i = 0; i < node; ++i)
    {
        slot += depthOf(parents, i) == depth && hasChild(parents, total, i) ? 1 : 0;
    }
    return slot;
}

TF_DEVICE StaticPlace staticPlace(TreeParams const& p, int32_t node)
{
    TreeArgs const& t = p.args;
    int32_t const* parents = t.static_parents;
    int32_t const depth = depthOf(parents, node);
    int32_t const slot = slotOf(parents, t.total, parentOf(parents, node));
    int32_t const offset = levelOffset(depth - 1, t.top_k, t.expand);
    int32_t const rank = heldIn(t.static_ranks[node], 0, t.top_k - 1);
    return StaticPlace{heldIn(offset + slot * t.top_k + rank, 0, p.candidates - 1), depth};
}

//! Bytes of shared memory: scores, node of each candidate, candidate of each node.
TF_BOTH int treeSharedBytes(int32_t candidates)
{
    return candidates * 8 + kMAX_TREE_NODES * 8 + 16;
}

//! Grid (B): next frontier, and the tree of the best nodes so far.
TF_KERNEL(kEAGLE_THREADS, 1) treeSelect(TreeParams const p)
{
    TreeArgs const& t = p.args;
    int32_t const request = blockX();
    int64_t const state = static_cast<int64_t>(request) * p.candidates;
    int32_t const known = p.offset + p.rows * t.top_k; // candidates of this level and of those before it
    float* scores = reinterpret_cast<float*>(sharedMemory());
    int32_t* nodeOf = reinterpret_cast<int32_t*>(scores + p.candidates); // 0: not in the tree
    int32_t* candidateOf = nodeOf + p.candidates;
    uint64_t* ancestors = reinterpret_cast<uint64_t*>(sharedMemory()); // scores are not needed by then
    int32_t* used = candidateOf + kMAX_TREE_NODES;
    int32_t const thread = threadIndex();
    for (int32_t i = thread; i < known; i += blockThreads())
    {
        scores[i] = t.candidate_scores[state + i];
        nodeOf[i] = 0;
    }
    for (int32_t i = thread; i < t.expand; i += blockThreads())
    {
        t.frontier[static_cast<int64_t>(request) * t.expand + i] = -1;
    }
    syncBlock();
    if (t.static_parents == nullptr)
    {
        for (int32_t i = thread; i < known; i += blockThreads())
        {
            if (scores[i] == -INFINITY)
            {
                continue;
            }
            int32_t const inLevel = i < p.offset ? t.expand : rankOf(scores, p.offset, known, i);
            if (inLevel < t.expand)
            {
                t.frontier[static_cast<int64_t>(request) * t.expand + inLevel] = i;
            }
            nodeOf[i] = rankOf(scores, 0, known, i) < t.total - 1 ? 1 : 0;
        }
        syncBlock();
        if (thread == 0)
        {
            int32_t next = 1;
            for (int32_t i = 0; i < known; ++i)
            {
                // scores that are no numbers rank alike: no more nodes than the tree has
                nodeOf[i] = nodeOf[i] != 0 && next < t.total ? next : 0;
                if (nodeOf[i] != 0)
                {
                    candidateOf[next++] = i;
                }
            }
            used[0] = next;
        }
    }
    else
    {
        if (thread == 0)
        {
            used[0] = 1;
        }
        syncBlock();
        for (int32_t n = thread + 1; n < t.total; n += blockThreads())
        {
            StaticPlace const place = staticPlace(p, n);
            candidateOf[n] = place.candidate;
            if (place.depth <= t.level + 1)
            {
                nodeOf[place.candidate] = n;
            }
            if (place.depth == t.level + 1 && hasChild(t.static_parents, t.total, n))
            {
                int32_t const slot = slotOf(t.static_parents, t.total, n);
                t.frontier[static_cast<int64_t>(request) * t.expand + heldIn(slot, 0, t.expand - 1)] = place.candidate;
            }
            bool const next = n + 1 == t.total || depthOf(t.static_parents, n + 1) > t.level + 1;
            if (place.depth <= t.level + 1 && next)
            {
                used[0] = n + 1; // levels come one after another, so known nodes are a prefix
            }
        }
    }
    syncBlock();
    int64_t const tree = static_cast<int64_t>(request) * t.total;
    for (int32_t n = thread; n < t.total; n += blockThreads())
    {
        bool const node = n > 0 && n < used[0];
        int32_t const candidate = node ? candidateOf[n] : 0;
        int32_t const above = node ? t.candidate_parents[state + candidate] : -1;
        t.tokens[tree + n] = n == 0 ? t.root_tokens[request] : node ? t.candidate_tokens[state + candidate] : 0;
        t.scores[tree + n] = node ? t.candidate_scores[state + candidate] : 0.0F;
        t.parents[tree + n] = !node ? -1 : above < 0 || above >= known ? 0 : nodeOf[above];
    }
    syncBlock();
    if (thread == 0)
    {
        t.counts[request] = used[0];
        for (int32_t n = 0; n < t.total; ++n)
        {
            int32_t const above = t.parents[tree + n];
            ancestors[n] = (uint64_t{1} << n) | (above >= 0 ? ancestors[above] : 0);
            t.depths[tree + n] = above >= 0 ? t.depths[tree + above] + 1 : 0;
        }
    }
    syncBlock();
    for (int32_t i = thread; i < t.total * t.total; i += blockThreads())
    {
        t.mask[tree * t.total + i] = static_cast<uint8_t>(ancestors[i / t.total] >> (i % t.total) & 1U);
    }
}

//! A logit as it is compared: scaled and perturbed when sampling; NaN never wins.
TF_DEVICE float perturbed(float x, float temperature, uint32_t word)
{
    float const noise = -logf(-logf(uniformOf(word)));
    return x / temperature + noise;
}

//! The target's token after a node: the first maximum, of the logits or of the logits plus Gumbel noise.
TF_DEVICE int32_t chooseToken(AcceptArgs const& t, int64_t row, float temperature, int64_t seed, int32_t position,
    Ranked* shared)
{
    Ranked best{-INFINITY, 0x7fffffff};
    for (int32_t block = threadIndex(); block * 4 < t.vocabulary; block += blockThreads())
    {
        Philox noise{};
        if (temperature > 0.0F)
        {
            noise = tokenNoise(seed, position, block);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
        {
            int32_t const v = block * 4 + i;
            if (v < t.vocabulary)
            {
                float const x = loadElement(t.target_logits, row * t.target_logits_stride + v, t.logits_dtype);
                float const y = temperature > 0.0F ? perturbed(x, temperature, noise.word[i]) : x;
                Ranked const next{y == y ? y : -INFINITY, v};
                best = beats(next, best) ? next : best;
            }
        }
    }
    return blockBest(best, shared).index;
}

//! Grid (B): walks from the root to the first node whose next token no child carries.
TF_KERNEL(kEAGLE_THREADS, 1) acceptPath(AcceptArgs const t)
{
    Ranked* shared = reinterpret_cast<Ranked*>(sharedMemory());
    int32_t const request = blockX();
    int32_t const total = t.total;
    int64_t const tree = static_cast<int64_t>(request) * total;
    int32_t const count = heldIn(t.counts[request], 0, total);
    float const temperature = t.temperatures != nullptr ? t.temperatures[request] : 0.0F;
    int64_t const seed = temperature > 0.0F ? t.seeds[request] : 0;
    int32_t const root = temperature > 0.0F ? t.root_positions[request] : 0;
    int32_t node = 0;
    int32_t length = 0;
    int32_t token = 0;
    while (node >= 0)
    {
        token = chooseToken(t, tree + node, temperature, seed, root + length + 1, shared);
        int32_t child = -1;
        for (int32_t i = count - 1; i > node; --i)
        {
            child = t.parents[tree + i] == node && t.tokens[tree + i] == token ? i : child;
        }
        if (threadIndex() == 0)
        {
            t.path[tree + length] = node;
            t.emitted[tree + length] = token;
        }
        ++length;
        node = child;
    }
    for (int32_t i = length + threadIndex(); i < total; i += blockThreads())
    {
        t.path[tree + i] = -1;
        t.emitted[tree + i] = -1;
    }
    if (threadIndex() == 0)
    {
        t.lengths[request] = length;
        t.bonus[request] = token;
    }
}

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_EAGLE_KERNELS_CUH
