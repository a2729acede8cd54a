//! \file eagle_rules.hpp
//! \brief Rules of EagleTreeBuild, EagleAccept and PagedKVMove that hold for every implementation.
#ifndef TRTFORGE_EAGLE_RULES_HPP
#define TRTFORGE_EAGLE_RULES_HPP

#include "trtforge/tree_layout.hpp"
#include "trtforge/validate.hpp"

#include <cstdint>

namespace trtforge
{

inline int32_t candidatesOf(trtforge_eagle_tree_build_args const& a)
{
    return levelOffset(a.levels, a.top_k, a.expand);
}

//! What is known before there are tensors.
inline void checkTreeLimits(trtforge_eagle_tree_build_args const& a)
{
    require(a.top_k >= 1 && a.top_k <= kMAX_TREE_CHILDREN, TRTFORGE_BAD_VALUE, "top_k must be 1 to %d, got %d",
        kMAX_TREE_CHILDREN, a.top_k);
    require(a.expand >= 1 && a.expand <= kMAX_TREE_CHILDREN, TRTFORGE_BAD_VALUE, "expand must be 1 to %d, got %d",
        kMAX_TREE_CHILDREN, a.expand);
    require(a.levels >= 1 && a.levels <= kMAX_TREE_LEVELS, TRTFORGE_BAD_VALUE, "levels must be 1 to %d, got %d",
        kMAX_TREE_LEVELS, a.levels);
    require(a.total >= 2 && a.total <= kMAX_TREE_NODES, TRTFORGE_BAD_VALUE,
        "total must be 2 to %d nodes, the root included, got %d", kMAX_TREE_NODES, a.total);
    requireActivation(a.logits_dtype, "logits dtype");
}

//! Everything but what index tensors hold.
inline void checkTree(trtforge_eagle_tree_build_args const& a)
{
    checkTreeLimits(a);
    require(a.level >= 0 && a.level < a.levels, TRTFORGE_BAD_VALUE, "level must be 0 to %d, got %d", a.levels - 1,
        a.level);
    require(a.requests >= 0 && a.requests <= 65535, TRTFORGE_BAD_SHAPE, "%d requests: must be 0 to 65535", a.requests);
    require(a.vocabulary >= a.top_k, TRTFORGE_BAD_SHAPE, "a vocabulary of %d has no %d children", a.vocabulary, a.top_k);
    requireRow(a.draft_logits_stride, a.vocabulary, 2, "draft logits");
    bool const outputs = a.tokens != nullptr && a.parents != nullptr && a.depths != nullptr && a.scores != nullptr
        && a.mask != nullptr && a.counts != nullptr;
    bool const state = a.candidate_tokens != nullptr && a.candidate_parents != nullptr
        && a.candidate_scores != nullptr && a.frontier != nullptr;
    require(a.requests == 0 || (outputs && state && a.draft_logits != nullptr && a.root_tokens != nullptr),
        TRTFORGE_NULL_POINTER, "a tensor of EagleTreeBuild is null");
    require((a.static_parents == nullptr) == (a.static_ranks == nullptr), TRTFORGE_NULL_POINTER,
        "a static tree needs both its parents and its ranks");
}

//! A static tree on the host: parents first, level after level, ranks and expanded nodes within their limits.
inline void checkStaticShape(trtforge_eagle_tree_build_args const& a)
{
    int32_t const* parents = a.static_parents;
    int32_t const* ranks = a.static_ranks;
    int32_t depth[kMAX_TREE_NODES] = {0};
    bool expanded[kMAX_TREE_NODES] = {false};
    int32_t inLevel[kMAX_TREE_LEVELS + 1] = {0};
    require(parents[0] == -1, TRTFORGE_BAD_INDEX, "the root's parent must be -1, got %d", parents[0]);
    for (int32_t n = 1; n < a.total; ++n)
    {
        require(parents[n] >= 0 && parents[n] < n, TRTFORGE_BAD_INDEX, "node %d has parent %d: parents come first", n,
            parents[n]);
        depth[n] = depth[parents[n]] + 1;
        require(depth[n] >= depth[n - 1], TRTFORGE_BAD_INDEX, "node %d lies above node %d: order nodes by depth", n,
            n - 1);
        require(depth[n] <= a.levels, TRTFORGE_BAD_INDEX, "node %d lies at depth %d of at most %d", n, depth[n],
            a.levels);
        require(ranks[n] >= 0 && ranks[n] < a.top_k, TRTFORGE_BAD_INDEX, "node %d has rank %d of %d children", n,
            ranks[n], a.top_k);
        for (int32_t other = 1; other < n; ++other)
        {
            require(parents[other] != parents[n] || ranks[other] != ranks[n], TRTFORGE_BAD_INDEX,
                "nodes %d and %d are the same child", other, n);
        }
        inLevel[depth[parents[n]]] += expanded[parents[n]] ? 0 : 1;
        expanded[parents[n]] = true;
        require(inLevel[depth[parents[n]]] <= a.expand, TRTFORGE_BAD_INDEX,
            "more than %d nodes of depth %d have children", a.expand, depth[parents[n]]);
    }
}

inline void checkAcceptLimits(trtforge_eagle_accept_args const& a)
{
    require(a.total >= 1 && a.total <= kMAX_TREE_NODES, TRTFORGE_BAD_VALUE,
        "total must be 1 to %d nodes, the root included, got %d", kMAX_TREE_NODES, a.total);
    requireActivation(a.logits_dtype, "logits dtype");
}

inline void checkAccept(trtforge_eagle_accept_args const& a)
{
    checkAcceptLimits(a);
    require(a.requests >= 0 && a.requests <= 65535, TRTFORGE_BAD_SHAPE, "%d requests: must be 0 to 65535", a.requests);
    require(a.vocabulary >= 1, TRTFORGE_BAD_SHAPE, "the vocabulary is %d", a.vocabulary);
    requireRow(a.target_logits_stride, a.vocabulary, 2, "target logits");
    require(a.requests == 0
            || (a.target_logits != nullptr && a.tokens != nullptr && a.parents != nullptr && a.counts != nullptr
                && a.path != nullptr && a.lengths != nullptr && a.emitted != nullptr && a.bonus != nullptr),
        TRTFORGE_NULL_POINTER, "a tensor of EagleAccept is null");
    require(a.temperatures == nullptr || (a.seeds != nullptr && a.root_positions != nullptr), TRTFORGE_NULL_POINTER,
        "sampling needs seeds and root positions");
}

inline int32_t bytesOf(int32_t poolDtype)
{
    return poolDtype == TRTFORGE_FLOAT32 ? 4 : poolDtype == TRTFORGE_FLOAT8_E4M3 ? 1 : 2;
}

inline void checkMove(trtforge_kv_move_args const& a)
{
    require(a.pool_dtype >= TRTFORGE_FLOAT32 && a.pool_dtype <= TRTFORGE_FLOAT8_E4M3, TRTFORGE_BAD_DTYPE,
        "pool dtype must be float32 (0), bfloat16 (1), float16 (2) or float8_e4m3 (3), got %d", a.pool_dtype);
    require(a.head_size >= 64 && a.head_size <= 256 && a.head_size % 8 == 0, TRTFORGE_BAD_HEAD_SIZE,
        "head size must be a multiple of 8 from 64 to 256, got %d", a.head_size);
    require(a.block_size == 16 || a.block_size == 32 || a.block_size == 64 || a.block_size == 128,
        TRTFORGE_BAD_BLOCK_SIZE, "block size must be 16, 32, 64 or 128, got %d", a.block_size);
    require(a.num_kv_heads > 0 && a.num_kv_heads <= 65536, TRTFORGE_BAD_HEADS, "%d kv heads", a.num_kv_heads);
    require(a.num_pools >= 0 && a.num_blocks >= 0 && a.max_blocks >= 0, TRTFORGE_BAD_SHAPE,
        "%d pools, %d blocks, %d blocks a request", a.num_pools, a.num_blocks, a.max_blocks);
    require(a.requests >= 0 && a.requests <= 65535, TRTFORGE_BAD_SHAPE, "%d requests: must be 0 to 65535", a.requests);
    require(a.path_width >= 1 && a.path_width <= kMAX_TREE_NODES, TRTFORGE_BAD_SHAPE,
        "paths of %d nodes: must be 1 to %d", a.path_width, kMAX_TREE_NODES);
    requireRow(a.block_table_stride, a.max_blocks, a.requests, "block_table");
    if (a.num_pools == 0 || a.requests == 0)
    {
        return;
    }
    require(a.pools != nullptr && a.block_table != nullptr && a.base_positions != nullptr && a.path != nullptr
            && a.lengths != nullptr,
        TRTFORGE_NULL_POINTER, "a tensor of PagedKVMove is null");
    for (int32_t i = 0; i < a.num_pools; ++i)
    {
        require(a.pools[i] != nullptr, TRTFORGE_NULL_POINTER, "pool %d is null", i);
    }
}

} // namespace trtforge

#endif // TRTFORGE_EAGLE_RULES_HPP
