//! \file tree_layout.hpp
//! \brief Limits of draft trees, and where the candidates of a level lie in EagleTreeBuild's state.
#ifndef TRTFORGE_TREE_LAYOUT_HPP
#define TRTFORGE_TREE_LAYOUT_HPP

#include "trtforge/both.hpp"

#include <cstdint>

namespace trtforge
{

//! The root included.
constexpr int32_t kMAX_TREE_NODES = 64;
constexpr int32_t kMAX_TREE_CHILDREN = 16;
constexpr int32_t kMAX_TREE_LEVELS = 16;

//! Candidates that stand before those of `level`: the root's top_k, then top_k of each of `expand` nodes a level.
TF_BOTH int32_t levelOffset(int32_t level, int32_t topK, int32_t expand)
{
    return level == 0 ? 0 : topK + (level - 1) * expand * topK;
}

} // namespace trtforge

#endif // TRTFORGE_TREE_LAYOUT_HPP
