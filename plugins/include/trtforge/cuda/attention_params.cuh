//! \file attention_params.cuh
//! \brief What every kernel of PagedAttention takes, and how the workspace is laid out.
#ifndef TRTFORGE_CUDA_ATTENTION_PARAMS_CUH
#define TRTFORGE_CUDA_ATTENTION_PARAMS_CUH

#include "trtforge/cuda/launchers.hpp"
#include "trtforge/cuda/platform.cuh"

namespace trtforge
{
namespace cuda
{

//! Rows (tokens x heads of a group) of a task of the short kind: decode and small verification steps.
constexpr int kSHORT_ROWS = 16;

//! Some query rows of one request; every kv head and every split of the context takes the same list.
struct Task
{
    int32_t request;
    int32_t row; //!< first row; row r is token r / group, head r % group of the kv head
};

//! One of the two lists that the plan kernel writes.
struct TaskList
{
    int32_t* count{nullptr};
    Task* tasks{nullptr};
    int32_t rows{0};         //!< rows of a task
    int32_t capacity{0};     //!< tasks at most: the grid's width
    int32_t splits{1};       //!< pieces of a context; more than one needs partials
    float* partialOut{nullptr};   //!< [capacity, K, splits, rows, E], relative to partialStats' maximum
    float* partialStats{nullptr}; //!< [capacity, K, splits, rows, 2]: maximum (base-2 logit), sum
};

struct AttentionParams
{
    AttentionTensors tensors;
    int32_t tokens{0};
    int32_t requests{0};
    int32_t maxBlocks{0};
    int32_t numBlocks{0};
    int32_t treeMaskWidth{0};
    int32_t maxNewTokens{0}; //!< 0: not promised
    int32_t numHeads{0};
    int32_t numKvHeads{0};
    int32_t group{0};
    int32_t headSize{0};
    int32_t blockSize{0};
    int32_t blockShift{0}; //!< log2(blockSize)
    int32_t activationDtype{0};
    int32_t slidingWindow{0};
    float scale{0.0F};
    float softCap{0.0F};
    TaskList shortTasks;
    TaskList longTasks;
};

//! The context of one request as a task sees it.
struct Context
{
    int32_t firstToken; //!< of the step's T
    int32_t fresh;      //!< new tokens
    int32_t length;     //!< sequence length, new tokens included
    int32_t base;       //!< length - fresh
};

TF_DEVICE Context contextOf(AttentionParams const& p, int32_t request)
{
    Context c;
    c.firstToken = p.tensors.queryStart[request];
    c.fresh = p.tensors.queryStart[request + 1] - c.firstToken;
    c.length = p.tensors.sequenceLengths[request];
    c.base = c.length - c.fresh;
    return c;
}

//! The check kernel refused the call: nothing may be read or written.
TF_DEVICE bool refused(int32_t const* status)
{
    return status != nullptr && status[0] != 0;
}

//! Element offset of the head's row of `position` in the pool; plane 0 keys, 1 values.
TF_DEVICE int64_t poolRow(
    AttentionParams const& p, int32_t const* table, int32_t position, int32_t plane, int32_t kvHead)
{
    int64_t const block = table[position >> p.blockShift];
    int32_t const slot = position & (p.blockSize - 1);
    return (((block * 2 + plane) * p.numKvHeads + kvHead) * p.blockSize + slot) * p.headSize;
}

//! A node's own position when a tree mask and a window meet: its depth below the context.
TF_DEVICE int32_t windowPosition(AttentionParams const& p, Context const& c, int32_t token)
{
    if (p.tensors.treeMask == nullptr || p.slidingWindow == 0)
    {
        return c.base + token;
    }
    uint8_t const* row = p.tensors.treeMask + (c.firstToken + token) * p.tensors.treeMaskStride;
    int32_t seen = 0;
    for (int32_t i = 0; i < c.fresh; ++i)
    {
        seen += row[i] != 0 ? 1 : 0;
    }
    return c.base + (seen > 1 ? seen : 1) - 1;
}

//! Whether new token `token` (window position `position`) sees the key at `key`.
TF_DEVICE bool sees(AttentionParams const& p, Context const& c, int32_t token, int32_t position, int32_t key)
{
    bool const inside = p.slidingWindow == 0 || key > position - p.slidingWindow;
    if (p.tensors.treeMask == nullptr)
    {
        return key <= position && inside;
    }
    if (key < c.base)
    {
        return inside;
    }
    return key < c.length
        && p.tensors.treeMask[(c.firstToken + token) * p.tensors.treeMaskStride + (key - c.base)] != 0;
}

//! Keys [begin, end) that one split of a task walks, in whole tiles of `tile` keys; empty when begin >= end.
struct KeyRange
{
    int32_t begin;
    int32_t end;
};

TF_DEVICE KeyRange keysOfSplit(AttentionParams const& p, Context const& c, TaskList const& list, int32_t row,
    int32_t rows, int32_t split, int32_t tile)
{
    bool const tree = p.tensors.treeMask != nullptr;
    int32_t const firstPosition = tree ? c.base : c.base + row / p.group;
    int32_t const last = tree ? c.length : c.base + (row + rows - 1) / p.group + 1;
    int32_t first = p.slidingWindow > 0 ? firstPosition - p.slidingWindow + 1 : 0;
    first = first > 0 ? first / tile : 0;
    int32_t const tiles = (last + tile - 1) / tile - first;
    int32_t const each = (tiles + list.splits - 1) / list.splits;
    int32_t const begin = (first + split * each) * tile;
    int32_t const end = begin + each * tile;
    return KeyRange{begin, end < last ? end : last};
}

//! Base-2 logit of a dot product: scale, cap, and log2(e) so that exp2 is the only exponential.
TF_DEVICE float logit(float dot, float scale, float softCap)
{
    float const s = dot * scale;
    return kLOG2E * (softCap > 0.0F ? softCap * tanhf(s / softCap) : s);
}

//! exp2(x - maximum) where a maximum of -inf stands for "no key seen yet".
TF_DEVICE float weightOf(float x, float maximum)
{
    return exponential2(x - (maximum == -INFINITY ? 0.0F : maximum));
}

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_ATTENTION_PARAMS_CUH
