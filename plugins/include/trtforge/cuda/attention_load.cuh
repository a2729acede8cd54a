//! \file attention_load.cuh
//! \brief Tiles of keys, values and queries into shared memory, as the tensor-core kernel wants them.
#ifndef TRTFORGE_CUDA_ATTENTION_LOAD_CUH
#define TRTFORGE_CUDA_ATTENTION_LOAD_CUH

#include "trtforge/cuda/attention_rows.cuh"

namespace trtforge
{
namespace cuda
{

//! Eight E4M3 values as eight of T.
template <typename T>
TF_DEVICE Vec16 widenEight(uint32_t low, uint32_t high)
{
    return Vec16{{widenPair<T>(low), widenPair<T>(low >> 16), widenPair<T>(high), widenPair<T>(high >> 16)}};
}

//! Sixteen E4M3 values of a row, or the eight that are left of it.
TF_DEVICE Vec16 loadSixteen(E4m3 const* from, bool aligned, bool whole)
{
    if (aligned)
    {
        return *reinterpret_cast<Vec16 const*>(from);
    }
    Vec8 const first = *reinterpret_cast<Vec8 const*>(from);
    Vec8 const second = whole ? *reinterpret_cast<Vec8 const*>(from + 8) : Vec8{{0, 0}};
    return Vec16{{first.word[0], first.word[1], second.word[0], second.word[1]}};
}

//! Fills KEYS rows of keys and of values (VALUES elements behind); keys from `end` on and columns past the head become
//! zero.
template <typename T, typename Pool, int HEAD, int THREADS, int KEYS, int PITCH, int VALUES>
TF_DEVICE void loadTile(PoolRows<Pool const> const& pool, int32_t begin, int32_t end, uint16_t* tile)
{
    if constexpr (sizeof(Pool) == 2)
    {
        constexpr int kEIGHTS = HEAD / 8;
#pragma unroll 4
        for (int i = threadIndex(); i < KEYS * kEIGHTS; i += THREADS)
        {
            int const key = i / kEIGHTS;
            int const column = i % kEIGHTS * 8;
            bool const valid = begin + key < end && column < pool.headSize;
            Pool const* from = valid ? pool.key(begin + key) + column : pool.base;
            uint16_t* to = tile + key * PITCH + column;
            copyAsync16(to, from, valid ? 16 : 0);
            copyAsync16(to + VALUES, from + pool.plane, valid ? 16 : 0);
        }
    }
    else
    {
        constexpr int kSIXTEENS = HEAD / 16;
        bool const aligned = pool.headSize % 16 == 0; // else rows lie at multiples of eight bytes
#pragma unroll 2
        for (int i = threadIndex(); i < KEYS * kSIXTEENS; i += THREADS)
        {
            int const key = i / kSIXTEENS;
            int const column = i % kSIXTEENS * 16;
            Vec16 k{{0, 0, 0, 0}};
            Vec16 v{{0, 0, 0, 0}};
            if (begin + key < end && column < pool.headSize)
            {
                Pool const* from = pool.key(begin + key) + column;
                k = loadSixteen(from, aligned, column + 8 < pool.headSize);
                v = loadSixteen(from + pool.plane, aligned, column + 8 < pool.headSize);
            }
            Vec16* to = reinterpret_cast<Vec16*>(tile + key * PITCH + column);
            to[0] = widenEight<T>(k.word[0], k.word[1]);
            to[1] = widenEight<T>(k.word[2], k.word[3]);
            to = reinterpret_cast<Vec16*>(tile + key * PITCH + column + VALUES);
            to[0] = widenEight<T>(v.word[0], v.word[1]);
            to[1] = widenEight<T>(v.word[2], v.word[3]);
        }
    }
}

//! The task's query rows, zero past the last row and past the head.
template <int HEAD, int THREADS, int ROWS, int PITCH>
TF_DEVICE void loadQueries(
    AttentionParams const& p, Context const& c, int32_t kvHead, int32_t firstRow, int32_t rows, uint16_t* shared)
{
    constexpr int kEIGHTS = HEAD / 8;
    for (int i = threadIndex(); i < ROWS * kEIGHTS; i += THREADS)
    {
        int const row = i / kEIGHTS;
        int const column = i % kEIGHTS * 8;
        Vec16 v{{0, 0, 0, 0}};
        if (row < rows && column < p.args.head_size)
        {
            int32_t const r = firstRow + row;
            int64_t const at = (c.firstToken + r / p.group) * p.args.query_stride
                + static_cast<int64_t>(kvHead * p.group + r % p.group) * p.args.head_size + column;
            v = *reinterpret_cast<Vec16 const*>(static_cast<uint16_t const*>(p.args.query) + at);
        }
        *reinterpret_cast<Vec16*>(shared + row * PITCH + column) = v;
    }
}

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_ATTENTION_LOAD_CUH
