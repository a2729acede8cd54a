//! \file speculation.cpp
//! \brief EagleTreeBuild, EagleAccept and PagedKVMove on the host (contracts: docs/ops.md).
#include "runtime.hpp"

#include "trtforge/eagle_rules.hpp"
#include "trtforge/random.hpp"

#define TRTFORGE_ISA_NAMESPACE speculation
#include "trtforge/numeric.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace trtforge
{
namespace
{

//! values that are searched for their largest at once
constexpr int32_t kCHUNK = 256;
constexpr float kNEVER = -std::numeric_limits<float>::infinity();

//! A row of logits as float32 (in `buffer` unless it is float32 already).
float const* rowOf(void const* base, int64_t first, int32_t count, int32_t dtype, std::vector<float>& buffer)
{
    if (dtype == TRTFORGE_FLOAT32)
    {
        return static_cast<float const*>(base) + first;
    }
    buffer.resize(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i)
    {
        buffer[static_cast<size_t>(i)] = dtype == TRTFORGE_BFLOAT16
            ? speculation::toFloat(static_cast<Bf16 const*>(base)[first + i])
            : speculation::toFloat(static_cast<Fp16 const*>(base)[first + i]);
    }
    return buffer.data();
}

// --- EagleTreeBuild -----------------------------------------------------------------------------------------

struct Tree
{
    trtforge_eagle_tree_build_args const& a;
    int32_t rows;   //!< R
    int32_t offset; //!< first candidate of this level
    int32_t known;  //!< candidates of this level and of those before it
    int64_t candidates;
};

void drawChildren(Tree const& t, int32_t request, int32_t row, std::vector<float>& buffer)
{
    trtforge_eagle_tree_build_args const& a = t.a;
    int64_t const state = request * t.candidates;
    int64_t const first = state + t.offset + row * a.top_k;
    int32_t const parent = a.level == 0 ? -1 : a.frontier[static_cast<int64_t>(request) * a.expand + row];
    for (int32_t i = 0; i < a.top_k; ++i)
    {
        a.candidate_tokens[first + i] = 0;
        a.candidate_parents[first + i] = parent;
        a.candidate_scores[first + i] = kNEVER;
    }
    if (a.level > 0 && parent < 0)
    {
        return;
    }
    int64_t const at = (static_cast<int64_t>(request) * t.rows + row) * a.draft_logits_stride;
    float const* logits = rowOf(a.draft_logits, at, a.vocabulary, a.logits_dtype, buffer);
    float best[kMAX_TREE_CHILDREN];
    int32_t token[kMAX_TREE_CHILDREN];
    int32_t found = 0;
    for (int32_t v = 0; v < a.vocabulary; ++v)
    {
        float const x = std::isfinite(logits[v]) ? logits[v] : kNEVER;
        if (found == a.top_k && !(x > best[found - 1]))
        {
            continue;
        }
        int32_t place = found < a.top_k ? found++ : found - 1;
        for (; place > 0 && x > best[place - 1]; --place)
        {
            best[place] = best[place - 1];
            token[place] = token[place - 1];
        }
        best[place] = x;
        token[place] = v;
    }
    double sum = 0.0;
    for (int32_t v = 0; v < a.vocabulary; ++v)
    {
        sum += std::isfinite(logits[v]) ? std::exp(logits[v] - best[0]) : 0.0F;
    }
    float const logSum = static_cast<float>(std::log(sum));
    float const above = parent < 0 ? 0.0F : a.candidate_scores[state + parent];
    for (int32_t i = 0; i < a.top_k; ++i)
    {
        a.candidate_tokens[first + i] = token[i] + (a.draft_to_target != nullptr ? a.draft_to_target[token[i]] : 0);
        a.candidate_scores[first + i] = best[i] == kNEVER ? kNEVER : above + (best[i] - best[0] - logSum);
    }
}

//! The best `count` of candidates [begin, end), best first, the lower index first of equal scores.
std::vector<int32_t> bestOf(float const* scores, int32_t begin, int32_t end, int32_t count)
{
    std::vector<int32_t> order;
    for (int32_t i = begin; i < end; ++i)
    {
        if (scores[i] > kNEVER)
        {
            order.push_back(i);
        }
    }
    auto const better = [&](int32_t x, int32_t y) { return scores[x] != scores[y] ? scores[x] > scores[y] : x < y; };
    size_t const kept = std::min(order.size(), static_cast<size_t>(count));
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), better);
    order.resize(kept);
    return order;
}

std::vector<int32_t> chooseDynamic(Tree const& t, float const* scores, int32_t* frontier)
{
    std::vector<int32_t> const next = bestOf(scores, t.offset, t.known, t.a.expand);
    std::copy(next.begin(), next.end(), frontier);
    std::vector<int32_t> chosen = bestOf(scores, 0, t.known, t.a.total - 1);
    std::sort(chosen.begin(), chosen.end());
    return chosen;
}

std::vector<int32_t> chooseStatic(Tree const& t, int32_t* frontier)
{
    trtforge_eagle_tree_build_args const& a = t.a;
    int32_t depth[kMAX_TREE_NODES] = {0};
    int32_t slot[kMAX_TREE_NODES];
    int32_t slots[kMAX_TREE_LEVELS + 1] = {0};
    bool inner[kMAX_TREE_NODES] = {false};
    for (int32_t n = 1; n < a.total; ++n)
    {
        depth[n] = depth[a.static_parents[n]] + 1;
        inner[a.static_parents[n]] = true;
    }
    for (int32_t n = 0; n < a.total; ++n)
    {
        slot[n] = inner[n] ? slots[depth[n]]++ : -1;
    }
    std::vector<int32_t> chosen;
    for (int32_t n = 1; n < a.total && depth[n] <= a.level + 1; ++n)
    {
        int32_t const offset = levelOffset(depth[n] - 1, a.top_k, a.expand);
        chosen.push_back(offset + slot[a.static_parents[n]] * a.top_k + a.static_ranks[n]);
        if (depth[n] == a.level + 1 && inner[n])
        {
            frontier[slot[n]] = chosen.back();
        }
    }
    return chosen;
}

void writeTree(Tree const& t, int32_t request)
{
    trtforge_eagle_tree_build_args const& a = t.a;
    int64_t const state = request * t.candidates;
    int64_t const tree = static_cast<int64_t>(request) * a.total;
    int32_t* frontier = a.frontier + static_cast<int64_t>(request) * a.expand;
    std::fill(frontier, frontier + a.expand, -1);
    std::vector<int32_t> const chosen = a.static_parents == nullptr
        ? chooseDynamic(t, a.candidate_scores + state, frontier)
        : chooseStatic(t, frontier);
    std::vector<int32_t> node(static_cast<size_t>(t.candidates), 0);
    uint64_t ancestors[kMAX_TREE_NODES];
    int32_t const count = static_cast<int32_t>(chosen.size()) + 1;
    a.counts[request] = count;
    for (int32_t n = 0; n < a.total; ++n)
    {
        int32_t parent = -1;
        if (n > 0 && n < count)
        {
            int32_t const candidate = chosen[static_cast<size_t>(n - 1)];
            int32_t const above = a.candidate_parents[state + candidate];
            node[static_cast<size_t>(candidate)] = n;
            parent = above < 0 ? 0 : node[static_cast<size_t>(above)];
            a.tokens[tree + n] = a.candidate_tokens[state + candidate];
            a.scores[tree + n] = a.candidate_scores[state + candidate];
        }
        else
        {
            a.tokens[tree + n] = n == 0 ? a.root_tokens[request] : 0;
            a.scores[tree + n] = 0.0F;
        }
        a.parents[tree + n] = parent;
        a.depths[tree + n] = parent < 0 ? 0 : a.depths[tree + parent] + 1;
        ancestors[n] = (uint64_t{1} << n) | (parent < 0 ? 0 : ancestors[parent]);
        for (int32_t other = 0; other < a.total; ++other)
        {
            a.mask[(tree + n) * a.total + other] = static_cast<uint8_t>(ancestors[n] >> other & 1U);
        }
    }
}

void eagleTreeBuild(trtforge_eagle_tree_build_args const* args)
{
    checkStruct(args);
    trtforge_eagle_tree_build_args const& a = *args;
    checkTree(a);
    if (a.static_parents != nullptr)
    {
        checkStaticShape(a);
    }
    int32_t const rows = a.level == 0 ? 1 : a.expand;
    int32_t const offset = levelOffset(a.level, a.top_k, a.expand);
    Tree const tree{a, rows, offset, offset + rows * a.top_k, candidatesOf(a)};
    for (int64_t i = 0; a.level > 0 && i < static_cast<int64_t>(a.requests) * a.expand; ++i)
    {
        require(a.frontier[i] >= -1 && a.frontier[i] < offset, TRTFORGE_BAD_INDEX,
            "frontier holds candidate %d, but %d are known before level %d", a.frontier[i], offset, a.level);
    }
    int64_t const count = static_cast<int64_t>(a.requests) * rows;
    parallelRanges(count, threadsFor(count * a.vocabulary, 1 << 17),
        [&](int64_t begin, int64_t end)
        {
            std::vector<float> buffer;
            for (int64_t i = begin; i < end; ++i)
            {
                drawChildren(tree, static_cast<int32_t>(i / rows), static_cast<int32_t>(i % rows), buffer);
            }
        });
    for (int32_t request = 0; request < a.requests; ++request)
    {
        writeTree(tree, request);
    }
}

// --- EagleAccept --------------------------------------------------------------------------------------------

//! The largest of 256 values, NaN left out. Lanes side by side: a single running maximum would be one long chain of waits.
float largestOf(float const* values)
{
    constexpr int32_t kLANES = 32;
    float lane[kLANES];
    std::fill(lane, lane + kLANES, kNEVER);
    for (int32_t i = 0; i < kCHUNK; i += kLANES)
    {
        for (int32_t j = 0; j < kLANES; ++j)
        {
            lane[j] = values[i + j] > lane[j] ? values[i + j] : lane[j]; // NaN compares false
        }
    }
    float most = kNEVER;
    for (float const value : lane)
    {
        most = value > most ? value : most;
    }
    return most;
}

//! The first maximum of a row; NaN never wins, and a row without numbers gives 0.
int32_t firstMaximum(float const* logits, int32_t count)
{
    int32_t const even = count - count % kCHUNK;
    int32_t first = even;
    float most = kNEVER;
    for (int32_t begin = 0; begin < even; begin += kCHUNK)
    {
        float const largest = largestOf(logits + begin);
        first = largest > most ? begin : first;
        most = largest > most ? largest : most;
    }
    int32_t best = first;
    for (; best < even && logits[best] != most; ++best)
    {
    }
    best = best < even ? best : 0;
    for (int32_t v = even; v < count; ++v)
    {
        best = logits[v] > most ? v : best;
        most = logits[v] > most ? logits[v] : most;
    }
    return best;
}

int32_t chooseToken(trtforge_eagle_accept_args const& a, int64_t row, int32_t request, int32_t position,
    std::vector<float>& buffer)
{
    float const temperature = a.temperatures != nullptr ? a.temperatures[request] : 0.0F;
    float const* logits
        = rowOf(a.target_logits, row * a.target_logits_stride, a.vocabulary, a.logits_dtype, buffer);
    if (!(temperature > 0.0F))
    {
        return firstMaximum(logits, a.vocabulary);
    }
    int32_t best = 0;
    float most = kNEVER;
    for (int32_t block = 0; block * 4 < a.vocabulary; ++block)
    {
        Philox const noise = tokenNoise(a.seeds[request], position, block);
        int32_t const end = std::min(block * 4 + 4, a.vocabulary);
        for (int32_t v = block * 4; v < end; ++v)
        {
            float const x
                = logits[v] / temperature - std::log(-std::log(uniformOf(noise.word[v - block * 4])));
            best = x > most ? v : best; // NaN compares false
            most = x > most ? x : most;
        }
    }
    return best;
}

void acceptOne(trtforge_eagle_accept_args const& a, int32_t request, std::vector<float>& buffer)
{
    int64_t const tree = static_cast<int64_t>(request) * a.total;
    int32_t const root = a.temperatures != nullptr ? a.root_positions[request] : 0;
    int32_t node = 0;
    int32_t length = 0;
    int32_t token = 0;
    while (node >= 0)
    {
        token = chooseToken(a, tree + node, request, root + length + 1, buffer);
        a.path[tree + length] = node;
        a.emitted[tree + length] = token;
        ++length;
        int32_t child = node + 1;
        while (child < a.counts[request] && (a.parents[tree + child] != node || a.tokens[tree + child] != token))
        {
            ++child;
        }
        node = child < a.counts[request] ? child : -1;
    }
    a.lengths[request] = length;
    a.bonus[request] = token;
    for (int32_t i = length; i < a.total; ++i)
    {
        a.path[tree + i] = -1;
        a.emitted[tree + i] = -1;
    }
}

void eagleAccept(trtforge_eagle_accept_args const* args)
{
    checkStruct(args);
    trtforge_eagle_accept_args const& a = *args;
    checkAccept(a);
    for (int32_t b = 0; b < a.requests; ++b)
    {
        require(a.counts[b] >= 1 && a.counts[b] <= a.total, TRTFORGE_BAD_INDEX, "counts[%d] is %d of %d nodes", b,
            a.counts[b], a.total);
        float const temperature = a.temperatures != nullptr ? a.temperatures[b] : 0.0F;
        require(std::isfinite(temperature) && temperature >= 0.0F, TRTFORGE_BAD_VALUE,
            "temperatures[%d] is %g: must be finite and not negative", b, static_cast<double>(temperature));
    }
    // a greedy row is a few microseconds of reading: below a million values waiting for threads costs more than it saves
    int64_t const grain = a.temperatures != nullptr ? 1 << 15 : 1 << 20;
    parallelRanges(a.requests, threadsFor(static_cast<int64_t>(a.requests) * a.vocabulary, grain),
        [&](int64_t begin, int64_t end)
        {
            std::vector<float> buffer;
            for (int64_t b = begin; b < end; ++b)
            {
                acceptOne(a, static_cast<int32_t>(b), buffer);
            }
        });
}

// --- PagedKVMove --------------------------------------------------------------------------------------------

void checkPaths(trtforge_kv_move_args const& a)
{
    for (int32_t b = 0; b < a.requests; ++b)
    {
        int32_t const* path = a.path + static_cast<int64_t>(b) * a.path_width;
        int32_t const length = a.lengths[b];
        int32_t const base = a.base_positions[b];
        require(length >= 0 && length <= a.path_width && base >= 0, TRTFORGE_BAD_SEQUENCE_LENGTH,
            "request %d: a path of %d nodes from position %d, of at most %d", b, length, base, a.path_width);
        for (int32_t i = 0; i < length; ++i)
        {
            require(path[i] >= i && (i == 0 || path[i] > path[i - 1]), TRTFORGE_BAD_INDEX,
                "path[%d][%d] is %d: nodes must rise along a path", b, i, path[i]);
            int64_t const capacity = static_cast<int64_t>(a.max_blocks) * a.block_size;
            require(static_cast<int64_t>(base) + path[i] < capacity, TRTFORGE_BAD_SEQUENCE_LENGTH,
                "request %d: position %lld is past its %d blocks", b, static_cast<long long>(base) + path[i],
                a.max_blocks);
            for (int32_t const position : {base + i, base + path[i]})
            {
                int32_t const block = a.block_table[b * a.block_table_stride + position / a.block_size];
                require(path[i] == i || (block >= 0 && block < a.num_blocks), TRTFORGE_BAD_BLOCK_TABLE,
                    "block_table[%d][%d] is %d, outside the pool of %d blocks", b, position / a.block_size, block,
                    a.num_blocks);
            }
        }
    }
}

//! Paths rise, so each row is read before a later one is written over it.
void movePool(trtforge_kv_move_args const& a, char* pool)
{
    int64_t const row = static_cast<int64_t>(a.head_size) * bytesOf(a.pool_dtype);
    for (int32_t b = 0; b < a.requests; ++b)
    {
        int32_t const* table = a.block_table + b * a.block_table_stride;
        int32_t const* path = a.path + static_cast<int64_t>(b) * a.path_width;
        for (int32_t i = 0; i < a.lengths[b]; ++i)
        {
            for (int32_t plane = 0; path[i] != i && plane < 2 * a.num_kv_heads; ++plane)
            {
                auto const at = [&](int32_t position)
                {
                    int64_t const block = table[position / a.block_size];
                    return pool
                        + ((block * 2 * a.num_kv_heads + plane) * a.block_size + position % a.block_size) * row;
                };
                std::memcpy(at(a.base_positions[b] + i), at(a.base_positions[b] + path[i]), static_cast<size_t>(row));
            }
        }
    }
}

void kvMove(trtforge_kv_move_args const* args)
{
    checkStruct(args);
    trtforge_kv_move_args const& a = *args;
    checkMove(a);
    if (a.num_pools == 0 || a.requests == 0)
    {
        return;
    }
    checkPaths(a);
    int64_t const bytes = static_cast<int64_t>(a.num_pools) * a.requests * a.path_width * a.num_kv_heads * a.head_size;
    parallelRanges(a.num_pools, threadsFor(bytes, 1 << 20),
        [&](int64_t begin, int64_t end)
        {
            for (int64_t i = begin; i < end; ++i)
            {
                movePool(a, static_cast<char*>(a.pools[i]));
            }
        });
}

} // namespace
} // namespace trtforge

extern "C" int trtforge_eagle_tree_build(trtforge_eagle_tree_build_args const* args)
{
    return trtforge::guarded([&] { trtforge::eagleTreeBuild(args); });
}

extern "C" int trtforge_eagle_accept(trtforge_eagle_accept_args const* args)
{
    return trtforge::guarded([&] { trtforge::eagleAccept(args); });
}

extern "C" int trtforge_kv_move(trtforge_kv_move_args const* args)
{
    return trtforge::guarded([&] { trtforge::kvMove(args); });
}
