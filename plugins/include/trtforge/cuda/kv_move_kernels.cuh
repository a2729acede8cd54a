//! \file kv_move_kernels.cuh
//! \brief PagedKVMove: accepted nodes' keys and values to contiguous slots, in place.
#ifndef TRTFORGE_CUDA_KV_MOVE_KERNELS_CUH
#define TRTFORGE_CUDA_KV_MOVE_KERNELS_CUH

#include "trtforge/cuda/launchers.hpp"
#include "trtforge/cuda/platform.cuh"

namespace trtforge
{
namespace cuda
{

constexpr int kMOVE_THREADS = 128;
//! Pools of one launch; their pointers travel as kernel arguments.
constexpr int kMOVE_POOLS = 128;

struct MoveParams
{
    void* pools[kMOVE_POOLS];
    MoveArgs args;   //!< its `pools` is a host pointer and not used on the device; num_pools are this launch's
    int32_t* status; //!< null, or kSTATUS_WORDS on the device
    int32_t rowBytes; //!< one head of one position
};

//! Grid (1): status[0] = 0, or the first broken rule: lengths, rising paths, positions and blocks in range.
TF_KERNEL(kMOVE_THREADS, 1) moveCheck(MoveParams const p)
{
    MoveArgs const& t = p.args;
    if (threadIndex() != 0)
    {
        return;
    }
    int32_t found[5] = {0, 0, 0, 0, 0};
    for (int32_t b = 0; b < t.requests && found[0] == 0; ++b)
    {
        int32_t const length = t.lengths[b];
        int32_t const* path = t.path + static_cast<int64_t>(b) * t.path_width;
        int32_t const base = t.base_positions[b];
        if (length < 0 || length > t.path_width || base < 0)
        {
            found[0] = TRTFORGE_BAD_SEQUENCE_LENGTH;
            found[1] = b;
            found[2] = length;
            found[3] = base;
            found[4] = t.path_width;
        }
        for (int32_t i = 0; i < length && found[0] == 0; ++i)
        {
            int64_t const position = static_cast<int64_t>(base) + path[i];
            bool const rising = path[i] >= i && (i == 0 || path[i] > path[i - 1]);
            int32_t const column = static_cast<int32_t>(position / t.block_size);
            int32_t const target = (base + i) / t.block_size;
            found[1] = b;
            if (!rising)
            {
                found[0] = TRTFORGE_BAD_INDEX;
                found[2] = i;
                found[3] = path[i];
                found[4] = 0;
            }
            else if (position >= static_cast<int64_t>(t.max_blocks) * t.block_size)
            {
                found[0] = TRTFORGE_BAD_SEQUENCE_LENGTH;
                found[2] = length;
                found[3] = base;
                found[4] = t.path_width;
            }
            else
            {
                int32_t const columns[2] = {column, target};
                for (int32_t k = 0; k < 2; ++k)
                {
                    int32_t const block = t.block_table[b * t.block_table_stride + columns[k]];
                    if (path[i] != i && (block < 0 || block >= t.num_blocks))
                    {
                        found[0] = TRTFORGE_BAD_BLOCK_TABLE;
                        found[2] = columns[k];
                        found[3] = block;
                        found[4] = t.num_blocks;
                    }
                }
            }
        }
    }
    for (int32_t i = 0; i < 5; ++i)
    {
        p.status[i] = found[i];
    }
}

//! Grid (slices, B): a thread moves one slice of every accepted row, in path order. Paths rise, so a row is read
//! before any later row is written over it.
template <typename Slice>
TF_KERNEL(kMOVE_THREADS, 1) moveRows(MoveParams const p)
{
    MoveArgs const& t = p.args;
    if (p.status != nullptr && p.status[0] != 0)
    {
        return;
    }
    int32_t const request = blockY();
    int32_t const slices = p.rowBytes / static_cast<int32_t>(sizeof(Slice));
    int64_t const i = static_cast<int64_t>(blockX()) * blockThreads() + threadIndex();
    if (i >= static_cast<int64_t>(t.num_pools) * 2 * t.num_kv_heads * slices)
    {
        return;
    }
    int32_t const slice = static_cast<int32_t>(i % slices);
    int32_t const plane = static_cast<int32_t>(i / slices % (2 * t.num_kv_heads)); // keys' heads, then values'
    char* pool = static_cast<char*>(p.pools[i / slices / (2 * t.num_kv_heads)]);
    int32_t const* table = t.block_table + request * t.block_table_stride;
    int32_t const* path = t.path + static_cast<int64_t>(request) * t.path_width;
    int32_t const base = t.base_positions[request];
    int64_t const capacity = static_cast<int64_t>(t.max_blocks) * t.block_size;
    // Held inside table and pool, whatever the indices say: see contextOf().
    auto const at = [&](int64_t wanted)
    {
        int64_t const position = wanted < 0 ? 0 : wanted < capacity ? wanted : capacity - 1;
        int64_t const block = heldIn(table[position / t.block_size], 0, t.num_blocks - 1);
        int64_t const row = (block * 2 * t.num_kv_heads + plane) * t.block_size + position % t.block_size;
        return reinterpret_cast<Slice*>(pool + row * p.rowBytes) + slice;
    };
    int32_t const length = heldIn(t.lengths[request], 0, t.path_width);
    for (int32_t n = 0; n < length; ++n)
    {
        if (path[n] != n)
        {
            *at(static_cast<int64_t>(base) + n) = *at(static_cast<int64_t>(base) + path[n]);
        }
    }
}

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_KV_MOVE_KERNELS_CUH
