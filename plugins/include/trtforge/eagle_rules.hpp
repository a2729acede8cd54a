//! \file eagle_rules.hpp
//! \brief Rules of EagleTreeBuild, EagleAccept and PagedKVMove that hold for every implementation.
#ifndef TRTFORGE_EAGLE_RULES_HPP
#define TRTFORGE_EAGLE_RULES_HPP

#include "trtforge/validate.hpp"

#include <cstdint>

namespace trtforge
{

constexpr int32_t kMAX_TREE_NODES = 64;
constexpr int32_t kMAX_TREE_CHILDREN = 16;
constexpr int32_t kMAX_TREE_LEVELS = 16;

struct TreeLimits
{
    int32_t topK;
    int32_t expand;
    int32_t levels;
    int32_t total;
    int32_t logitsDtype;
};

inline int32_t candidatesOf(TreeLimits const& l)
{
    return l.topK + (l.levels - 1) * l.expand * l.topK;
}

inline void checkTreeLimits(TreeLimits const& l)
{
    require(l.topK >= 1 && l.topK <= kMAX_TREE_CHILDREN, TRTFORGE_BAD_VALUE, "top_k must be 1 to %d, got %d",
        kMAX_TREE_CHILDREN, l.topK);
    require(l.expand >= 1 && l.expand <= kMAX_TREE_CHILDREN, TRTFORGE_BAD_VALUE, "expand must be 1 to %d, got %d",
        kMAX_TREE_CHILDREN, l.expand);
    require(l.levels >= 1 && l.levels <= kMAX_TREE_LEVELS, TRTFORGE_BAD_VALUE, "levels must be 1 to %d, got %d",
        kMAX_TREE_LEVELS, l.levels);
    require(l.total >= 2 && l.total <= kMAX_TREE_NODES, TRTFORGE_BAD_VALUE,
        "total must be 2 to %d nodes, the root included, got %d", kMAX_TREE_NODES, l.total);
    requireActivation(l.logitsDtype, "logits dtype");
}

inline void checkTreeStep(
    TreeLimits const& l, int32_t level, int32_t requests, int32_t vocabulary, int64_t rowStride)
{
    require(level >= 0 && level < l.levels, TRTFORGE_BAD_VALUE, "level must be 0 to %d, got %d", l.levels - 1, level);
    require(requests >= 0 && requests <= 65535, TRTFORGE_BAD_SHAPE, "%d requests: must be 0 to 65535", requests);
    require(vocabulary >= l.topK, TRTFORGE_BAD_SHAPE, "a vocabulary of %d has no %d children", vocabulary, l.topK);
    requireRow(rowStride, vocabulary, 2, "draft logits");
}

//! A static tree on the host: parents first, level after level, ranks and expanded nodes within their limits.
inline void checkStaticShape(TreeLimits const& l, int32_t const* parents, int32_t const* ranks)
{
    int32_t depth[kMAX_TREE_NODES] = {0};
    bool expanded[kMAX_TREE_NODES] = {false};
    int32_t inLevel[kMAX_TREE_LEVELS + 1] = {0};
    require(parents[0] == -1, TRTFORGE_BAD_INDEX, "the root's parent must be -1, got %d", parents[0]);
    for (int32_t n = 1; n < l.total; ++n)
    {
        require(parents[n] >= 0 && parents[n] < n, TRTFORGE_BAD_INDEX, "node %d has parent %d: parents come first", n,
            parents[n]);
        depth[n] = depth[parents[n]] + 1;
        require(depth[n] >= depth[n - 1], TRTFORGE_BAD_INDEX, "node %d lies above node %d: order nodes by depth", n,
            n - 1);
        require(depth[n] <= l.levels, TRTFORGE_BAD_INDEX, "node %d lies at depth %d of at most %d", n, depth[n],
            l.levels);
        require(ranks[n] >= 0 && ranks[n] < l.topK, TRTFORGE_BAD_INDEX, "node %d has rank %d of %d children", n,
            ranks[n], l.topK);
        for (int32_t other = 1; other < n; ++other)
        {
            require(parents[other] != parents[n] || ranks[other] != ranks[n], TRTFORGE_BAD_INDEX,
                "nodes %d and %d are the same child", other, n);
        }
        inLevel[depth[parents[n]]] += expanded[parents[n]] ? 0 : 1;
        expanded[parents[n]] = true;
        require(inLevel[depth[parents[n]]] <= l.expand, TRTFORGE_BAD_INDEX,
            "more than %d nodes of depth %d have children", l.expand, depth[parents[n]]);
    }
}

inline void checkAcceptLimits(int32_t total, int32_t logitsDtype)
{
    require(total >= 1 && total <= kMAX_TREE_NODES, TRTFORGE_BAD_VALUE,
        "total must be 1 to %d nodes, the root included, got %d", kMAX_TREE_NODES, total);
    requireActivation(logitsDtype, "logits dtype");
}

inline void checkAcceptStep(int32_t requests, int32_t vocabulary, int64_t rowStride)
{
    require(requests >= 0 && requests <= 65535, TRTFORGE_BAD_SHAPE, "%d requests: must be 0 to 65535", requests);
    require(vocabulary >= 1, TRTFORGE_BAD_SHAPE, "the vocabulary is %d", vocabulary);
    requireRow(rowStride, vocabulary, 2, "target logits");
}

inline int32_t bytesOf(int32_t poolDtype)
{
    return poolDtype == TRTFORGE_FLOAT32 ? 4 : poolDtype == TRTFORGE_FLOAT8_E4M3 ? 1 : 2;
}

inline void checkMoveLimits(int32_t kvHeads, int32_t headSize, int32_t blockSize, int32_t poolDtype)
{
    require(poolDtype >= TRTFORGE_FLOAT32 && poolDtype <= TRTFORGE_FLOAT8_E4M3, TRTFORGE_BAD_DTYPE,
        "pool dtype must be float32 (0), bfloat16 (1), float16 (2) or float8_e4m3 (3), got %d", poolDtype);
    require(headSize >= 64 && headSize <= 256 && headSize % 8 == 0, TRTFORGE_BAD_HEAD_SIZE,
        "head size must be a multiple of 8 from 64 to 256, got %d", headSize);
    require(blockSize == 16 || blockSize == 32 || blockSize == 64 || blockSize == 128, TRTFORGE_BAD_BLOCK_SIZE,
        "block size must be 16, 32, 64 or 128, got %d", blockSize);
    require(kvHeads > 0 && kvHeads <= 65536, TRTFORGE_BAD_HEADS, "%d kv heads", kvHeads);
}

inline void checkMoveShapes(int32_t numPools, int32_t numBlocks, int32_t requests, int32_t maxBlocks,
    int32_t pathWidth, int64_t blockTableStride)
{
    require(numPools >= 0 && numBlocks >= 0 && maxBlocks >= 0, TRTFORGE_BAD_SHAPE,
        "%d pools, %d blocks, %d blocks a request", numPools, numBlocks, maxBlocks);
    require(requests >= 0 && requests <= 65535, TRTFORGE_BAD_SHAPE, "%d requests: must be 0 to 65535", requests);
    require(pathWidth >= 1 && pathWidth <= kMAX_TREE_NODES, TRTFORGE_BAD_SHAPE, "paths of %d nodes: must be 1 to %d",
        pathWidth, kMAX_TREE_NODES);
    requireRow(blockTableStride, maxBlocks, requests, "block_table");
}

} // namespace trtforge

#endif // TRTFORGE_EAGLE_RULES_HPP
