//! \file attention_simt.cuh
//! \brief Attention in plain float32 arithmetic, for what tensor cores would round: float32 queries or pools, and
//! pools of another sixteen-bit type than the queries.
#ifndef TRTFORGE_CUDA_ATTENTION_SIMT_CUH
#define TRTFORGE_CUDA_ATTENTION_SIMT_CUH

#include "trtforge/cuda/attention_rows.cuh"

namespace trtforge
{
namespace cuda
{

constexpr int kSIMT_THREADS = 128;
constexpr int kSIMT_KEYS = 32;
//! Columns of the largest head that a thread sums.
constexpr int kSIMT_COLUMNS = 256 / kSIMT_THREADS;

//! Floats of shared memory: queries, keys, values (rows padded by four) and weights.
TF_BOTH int simtSharedBytes(int headSize)
{
    return (kSHORT_ROWS * headSize + 2 * kSIMT_KEYS * (headSize + 4) + kSHORT_ROWS * (kSIMT_KEYS + 1)) * 4;
}

//! Eight pool values as float32.
template <typename Pool>
TF_DEVICE void loadPool(Pool const* from, float (&x)[8])
{
    if constexpr (sizeof(Pool) == 1)
    {
        Vec8 const v = *reinterpret_cast<Vec8 const*>(from);
        for (int i = 0; i < 8; ++i)
        {
            x[i] = widen(E4m3{static_cast<uint8_t>(v.word[i / 4] >> (i % 4 * 8))});
        }
    }
    else
    {
        constexpr int32_t kDTYPE
            = sizeof(Pool) == 4 ? TRTFORGE_FLOAT32 : kIS_BF16<Pool> ? TRTFORGE_BFLOAT16 : TRTFORGE_FLOAT16;
        loadEight(from, 0, kDTYPE, x);
    }
}

//! Grid (tasks, K, splits); sixteen rows a block.
template <typename Pool>
TF_KERNEL(kSIMT_THREADS, 2) attentionSimt(AttentionParams const p, TaskList const list)
{
    if (refused(p.status) || blockX() >= *list.count)
    {
        return;
    }
    int32_t const kvHead = blockY();
    int32_t const split = blockZ();
    int const thread = threadIndex();
    int32_t const size = p.args.head_size;
    int32_t const pitch = size + 4;
    Task const task = list.tasks[blockX()];
    Context const c = contextOf(p, task.request);
    int32_t const left = c.fresh * p.group - task.row;
    int32_t const rows = left < kSHORT_ROWS ? left : kSHORT_ROWS;
    KeyRange const range = keysOfSplit(p, c, list, task.row, rows, split, kSIMT_KEYS);
    int64_t const slotRow = partialSlot(p, list, blockX(), kvHead, split) * list.rows;
    PoolRows<Pool const> const pool(p, task.request, kvHead);
    float* query = reinterpret_cast<float*>(sharedMemory());
    float* keys = query + kSHORT_ROWS * size;
    float* values = keys + kSIMT_KEYS * pitch;
    float* weights = values + kSIMT_KEYS * pitch;  // [rows][keys]
    float* shrink = weights + kSHORT_ROWS * kSIMT_KEYS; // [rows] factor of earlier sums

    for (int i = thread; i < kSHORT_ROWS * size / 8; i += kSIMT_THREADS)
    {
        int32_t const row = i / (size / 8);
        int32_t const column = i % (size / 8) * 8;
        int32_t const r = task.row + row;
        float x[8] = {};
        if (row < rows)
        {
            loadEight(p.args.query,
                (c.firstToken + r / p.group) * p.args.query_stride
                    + static_cast<int64_t>(kvHead * p.group + r % p.group) * size + column,
                p.args.activation_dtype, x);
        }
        for (int j = 0; j < 8; ++j)
        {
            query[row * size + column + j] = x[j];
        }
    }
    // Eight lanes share a row's scores: lane % 8 takes every eighth key.
    int32_t const row = thread / 8;
    bool const used = row < rows;
    int32_t const token = used ? (task.row + row) / p.group : 0;
    int32_t const position = windowPosition(p, c, token);
    LogitScale const scale = logitScale(p);
    float maximum = -INFINITY;
    float sum = 0.0F;
    float out[kSHORT_ROWS][kSIMT_COLUMNS] = {};

    for (int32_t begin = range.begin; begin < range.end; begin += kSIMT_KEYS)
    {
        syncBlock();
        for (int i = thread; i < 2 * kSIMT_KEYS * size / 8; i += kSIMT_THREADS)
        {
            int32_t const column = i % (size / 8) * 8;
            int32_t const key = i / (size / 8) % kSIMT_KEYS;
            int32_t const plane = i / (size / 8) / kSIMT_KEYS;
            float x[8] = {};
            if (begin + key < range.end)
            {
                loadPool(pool.key(begin + key) + plane * pool.plane + column, x);
            }
            float* to = (plane == 0 ? keys : values) + key * pitch + column;
            for (int j = 0; j < 8; ++j)
            {
                to[j] = x[j];
            }
        }
        syncBlock();
        float score[kSIMT_KEYS / 8];
        float largest = maximum;
#pragma unroll
        for (int n = 0; n < kSIMT_KEYS / 8; ++n)
        {
            int32_t const key = thread % 8 + n * 8;
            float dot = 0.0F;
#pragma unroll 4
            for (int32_t d = 0; d < size; ++d)
            {
                dot = fmaf(query[row * size + d], keys[key * pitch + d], dot);
            }
            bool const visible = used && begin + key < range.end && sees(p, c, token, position, begin + key);
            score[n] = visible ? logit(dot, scale) : -INFINITY;
            largest = fmaxf(largest, score[n]);
        }
        largest = laneMax<8>(largest);
        float const factor = weightOf(maximum, largest);
        maximum = largest;
        sum *= factor;
#pragma unroll
        for (int n = 0; n < kSIMT_KEYS / 8; ++n)
        {
            float const weight = weightOf(score[n], maximum);
            sum += weight;
            weights[row * kSIMT_KEYS + thread % 8 + n * 8] = weight;
        }
        if (thread % 8 == 0)
        {
            shrink[row] = factor;
        }
        syncBlock();
#pragma unroll
        for (int r = 0; r < kSHORT_ROWS; ++r)
        {
#pragma unroll
            for (int j = 0; j < kSIMT_COLUMNS; ++j)
            {
                out[r][j] *= shrink[r];
            }
        }
#pragma unroll 1
        for (int key = 0; key < kSIMT_KEYS; ++key)
        {
            float value[kSIMT_COLUMNS];
#pragma unroll
            for (int j = 0; j < kSIMT_COLUMNS; ++j)
            {
                int32_t const column = thread + j * kSIMT_THREADS;
                value[j] = column < size ? values[key * pitch + column] : 0.0F;
            }
#pragma unroll
            for (int r = 0; r < kSHORT_ROWS; ++r)
            {
                float const weight = weights[r * kSIMT_KEYS + key];
#pragma unroll
                for (int j = 0; j < kSIMT_COLUMNS; ++j)
                {
                    // A key that a row does not see must not reach it, whatever it holds.
                    out[r][j] = weight != 0.0F ? fmaf(weight, value[j], out[r][j]) : out[r][j];
                }
            }
        }
    }
    sum = laneSum<8>(sum);
    syncBlock();
    if (thread % 8 == 0)
    {
        int32_t const head = kvHead * p.group + (task.row + row) % p.group;
        shrink[row] = list.splits > 1 ? 1.0F : normalizer(p, maximum, sum, head);
        if (list.splits > 1 && used)
        {
            list.partialStats[(slotRow + row) * 2] = maximum;
            list.partialStats[(slotRow + row) * 2 + 1] = sum;
        }
    }
    syncBlock();
#pragma unroll
    for (int r = 0; r < kSHORT_ROWS; ++r)
    {
#pragma unroll
        for (int j = 0; j < kSIMT_COLUMNS; ++j)
        {
            int32_t const column = thread + j * kSIMT_THREADS;
            if (r < rows && column < size)
            {
                if (list.splits > 1)
                {
                    list.partialOut[(slotRow + r) * size + column] = out[r][j];
                }
                else
                {
                    storeOutput(p, outputRow(p, c, kvHead, task.row + r) + column, out[r][j] * shrink[r]);
                }
            }
        }
    }
}

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_ATTENTION_SIMT_CUH
