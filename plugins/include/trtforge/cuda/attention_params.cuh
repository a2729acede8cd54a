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
    AttentionArgs args; //!< scale is set, a mask of one column is null
    float const* kScale{nullptr}; //!< null (1), or one float on the device; FP8 pools only
    float const* vScale{nullptr};
    int32_t* status{nullptr}; //!< null, or kSTATUS_WORDS on the device: the checked mode
    int32_t tokens{0};
    int32_t capacity{0};     //!< positions that a row of the block table holds
    int32_t maxNewTokens{0}; //!< 0: not promised
    int32_t group{0};
    int32_t blockShift{0}; //!< log2 of the block size
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

//! Offsets and lengths are held inside the tensors, whatever they say: an index that breaks the contract gives wrong
//! numbers, never another tensor's memory. Every kernel of a step sees the same context.
TF_DEVICE Context contextOf(AttentionParams const& p, int32_t request)
{
    int32_t const widest = p.args.tree_mask != nullptr && p.args.tree_mask_width < p.capacity ? p.args.tree_mask_width : p.capacity;
    Context c;
    c.firstToken = heldIn(p.args.query_start[request], 0, p.tokens);
    c.fresh = heldIn(p.args.query_start[request + 1], c.firstToken, p.tokens) - c.firstToken;
    c.fresh = c.fresh < widest ? c.fresh : widest;
    c.length = heldIn(p.args.sequence_lengths[request], c.fresh, p.capacity);
    c.base = c.length - c.fresh;
    return c;
}

//! The check kernel refused the call: nothing may be read or written.
TF_DEVICE bool refused(int32_t const* status)
{
    return status != nullptr && status[0] != 0;
}

//! Rows of one request and kv head in the pool; the values' row lies `plane` elements behind the keys'.
template <typename Pool>
struct PoolRows
{
    Pool* base;
    int32_t const* table;
    int64_t block; //!< elements of a block
    int32_t plane; //!< elements of a block's keys (or values)
    int32_t headSize;
    int32_t shift; //!< log2 of slots in a block
    int32_t last;  //!< block of the pool

    TF_DEVICE PoolRows(AttentionParams const& p, int32_t request, int32_t kvHead)
        : base(static_cast<Pool*>(p.args.kv_pool) + static_cast<int64_t>(kvHead) * p.args.block_size * p.args.head_size)
        , table(p.args.block_table + request * p.args.block_table_stride)
        , plane(p.args.num_kv_heads * p.args.block_size * p.args.head_size)
        , headSize(p.args.head_size)
        , shift(p.blockShift)
        , last(p.args.num_blocks - 1)
    {
        block = static_cast<int64_t>(plane) * 2;
    }

    TF_DEVICE Pool* key(int32_t position) const
    {
        int32_t const slot = position & ((1 << shift) - 1);
        return base + heldIn(table[position >> shift], 0, last) * block + slot * headSize;
    }
};

//! A node's own position when a tree mask and a window meet: its depth below the context.
TF_DEVICE int32_t windowPosition(AttentionParams const& p, Context const& c, int32_t token)
{
    if (p.args.tree_mask == nullptr || p.args.sliding_window == 0)
    {
        return c.base + token;
    }
    uint8_t const* row = p.args.tree_mask + (c.firstToken + token) * p.args.tree_mask_stride;
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
    bool const inside = p.args.sliding_window == 0 || key > position - p.args.sliding_window;
    if (p.args.tree_mask == nullptr)
    {
        return key <= position && inside;
    }
    if (key < c.base)
    {
        return inside;
    }
    return key < c.length
        && p.args.tree_mask[(c.firstToken + token) * p.args.tree_mask_stride + (key - c.base)] != 0;
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
    bool const tree = p.args.tree_mask != nullptr;
    int32_t const firstPosition = tree ? c.base : c.base + row / p.group;
    int32_t const last = tree ? c.length : c.base + (row + rows - 1) / p.group + 1;
    int32_t first = p.args.sliding_window > 0 ? firstPosition - p.args.sliding_window + 1 : 0;
    first = first > 0 ? first / tile : 0;
    int32_t const tiles = (last + tile - 1) / tile - first;
    int32_t const each = (tiles + list.splits - 1) / list.splits;
    int32_t const begin = (first + split * each) * tile;
    int32_t const end = begin + each * tile;
    return KeyRange{begin, end < last ? end : last};
}

//! The factors between a dot product and its base-2 logit: scale, cap, and log2(e), so that exp2 is the only
//! exponential.
struct LogitScale
{
    float plain;  //!< scale * log2(e)
    float inside; //!< scale / cap
    float cap;    //!< cap * log2(e); 0: none
};

TF_DEVICE LogitScale logitScale(AttentionParams const& p)
{
    float const scale = p.args.scale * (p.kScale != nullptr ? *p.kScale : 1.0F);
    bool const capped = p.args.soft_cap > 0.0F;
    return LogitScale{scale * kLOG2E, capped ? scale / p.args.soft_cap : 0.0F, capped ? p.args.soft_cap * kLOG2E : 0.0F};
}

TF_DEVICE float logit(float dot, LogitScale const& scale)
{
    return scale.cap > 0.0F ? scale.cap * tanhf(dot * scale.inside) : dot * scale.plain;
}

//! exp2(x - maximum) where a maximum of -inf stands for "no key seen yet".
TF_DEVICE float weightOf(float x, float maximum)
{
    return exponential2(x - (maximum == -INFINITY ? 0.0F : maximum));
}

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_ATTENTION_PARAMS_CUH
