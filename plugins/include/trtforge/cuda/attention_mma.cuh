//! \file attention_mma.cuh
//! \brief Attention on tensor cores (mma.m16n8k16, sm_80 and later) for bfloat16 and float16 queries.
//!
//! One template serves two kinds of task. Long tasks (prefill, mixed): WARPS_M warps own sixteen rows each and walk
//! the same keys. Short tasks (decode, verification): sixteen rows in all, and WARPS_N warps share the keys of each
//! tile, to be merged at the end. Rows are tokens x heads of a group, so that one pass over the keys serves a whole
//! group. Keys and values arrive in tiles, two in flight (cp.async); FP8 pools are widened on the way into shared
//! memory, exactly, and their scales multiply the logits and the output.
#ifndef TRTFORGE_CUDA_ATTENTION_MMA_CUH
#define TRTFORGE_CUDA_ATTENTION_MMA_CUH

#include "trtforge/cuda/attention_load.cuh"

namespace trtforge
{
namespace cuda
{

//! Sizes of one instantiation. HEAD: head sizes up to this are padded to it with zeros.
template <int HEAD, int WARPS_M, int WARPS_N>
struct MmaTile
{
    static constexpr int kTHREADS = WARPS_M * WARPS_N * kWARP_SIZE;
    static constexpr int kROWS = WARPS_M * 16;
    //! Keys of a tile; each of the WARPS_N warps takes its share.
    static constexpr int kKEYS = HEAD > 128 ? 32 : 64;
    static constexpr int kWARP_KEYS = kKEYS / WARPS_N;
    //! Sixteen bytes more than a row: eight rows of a matrix fall into different banks.
    static constexpr int kPITCH = HEAD + 8;
    //! Queries stay in registers unless they would not fit beside the sums.
    static constexpr bool kQUERY_IN_REGISTERS = HEAD <= 128;
    static constexpr int kTILE_ELEMENTS = kKEYS * kPITCH;
    static constexpr int kQUERY_ELEMENTS = kROWS * kPITCH;
    static constexpr int kSTAGE_BYTES = 2 * 2 * kTILE_ELEMENTS * 2;
    static constexpr int kMERGE_BYTES = WARPS_N > 1 ? (WARPS_N * 16 * (HEAD + 2)) * 4 : 0;
    static constexpr int kOVERLAY = kSTAGE_BYTES > kMERGE_BYTES ? kSTAGE_BYTES : kMERGE_BYTES;
    static constexpr int kSHARED_BYTES = kQUERY_IN_REGISTERS
        ? (kOVERLAY > kQUERY_ELEMENTS * 2 ? kOVERLAY : kQUERY_ELEMENTS * 2)
        : kOVERLAY + kQUERY_ELEMENTS * 2;

    static_assert(kWARP_KEYS % 16 == 0, "a step over values takes sixteen keys");
    static_assert(kSHARED_BYTES <= 101376, "sm_86, sm_89 and sm_120 give a block 99 KiB");
};

//! Sixteen rows of one warp: maximum, sum and weighted values of the keys seen so far.
template <int HEAD>
struct RowState
{
    float out[HEAD / 8][4];
    float maximum[2];
    float sum[2]; //!< this lane's share until it is added over the four lanes of a row

    TF_DEVICE void clear()
    {
#pragma unroll
        for (int n = 0; n < HEAD / 8; ++n)
        {
#pragma unroll
            for (int i = 0; i < 4; ++i)
            {
                out[n][i] = 0.0F;
            }
        }
        maximum[0] = maximum[1] = -INFINITY;
        sum[0] = sum[1] = 0.0F;
    }
};

//! Which keys a lane's two rows see; rows past the task's last one see nothing.
struct RowView
{
    int32_t token[2];
    int32_t position[2];
    bool used[2];
};

//! Softmax of a tile's logits over the running maximum; scores become weights, the state is rescaled.
template <int HEAD, int WARP_KEYS>
TF_DEVICE void softmaxStep(AttentionParams const& p, Context const& c, RowView const& view, LogitScale const& scale,
    int32_t firstKey, int32_t end, bool allSeen, float (&score)[WARP_KEYS / 8][4], RowState<HEAD>& state)
{
    int const lane = threadIndex() % kWARP_SIZE;
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; ++n)
    {
#pragma unroll
        for (int i = 0; i < 4; ++i)
        {
            score[n][i] = logit(score[n][i], scale);
        }
    }
    if (!allSeen)
    {
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; ++n)
        {
#pragma unroll
            for (int i = 0; i < 4; ++i)
            {
                int const row = i / 2;
                int32_t const key = firstKey + n * 8 + lane % 4 * 2 + i % 2;
                bool const visible
                    = view.used[row] && key < end && sees(p, c, view.token[row], view.position[row], key);
                score[n][i] = visible ? score[n][i] : -INFINITY;
            }
        }
    }
    float largest[2] = {state.maximum[0], state.maximum[1]};
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; ++n)
    {
#pragma unroll
        for (int i = 0; i < 4; ++i)
        {
            largest[i / 2] = fmaxf(largest[i / 2], score[n][i]);
        }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row)
    {
        float const now = laneMax<4>(largest[row]);
        float const shrink = weightOf(state.maximum[row], now);
        state.maximum[row] = now;
        state.sum[row] *= shrink;
#pragma unroll
        for (int n = 0; n < HEAD / 8; ++n)
        {
            state.out[n][2 * row] *= shrink;
            state.out[n][2 * row + 1] *= shrink;
        }
    }
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; ++n)
    {
#pragma unroll
        for (int i = 0; i < 4; ++i)
        {
            score[n][i] = weightOf(score[n][i], state.maximum[i / 2]);
            state.sum[i / 2] += score[n][i];
        }
    }
}

//! Scores of sixteen rows against a warp's keys of a tile.
template <typename T, int HEAD, int WARP_KEYS, int PITCH, bool IN_REGISTERS>
TF_DEVICE void multiplyQueries(uint32_t const (&query)[IN_REGISTERS ? HEAD / 16 : 1][4], uint16_t const* queryRows,
    uint16_t const* keys, float (&score)[WARP_KEYS / 8][4])
{
    int const lane = threadIndex() % kWARP_SIZE;
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; ++n)
    {
#pragma unroll
        for (int i = 0; i < 4; ++i)
        {
            score[n][i] = 0.0F;
        }
    }
#pragma unroll
    for (int k = 0; k < HEAD / 16; ++k)
    {
        uint32_t a[4];
        if constexpr (IN_REGISTERS)
        {
#pragma unroll
            for (int i = 0; i < 4; ++i)
            {
                a[i] = query[k][i];
            }
        }
        else
        {
            loadMatrices(a, queryRows + lane % 16 * PITCH + k * 16 + lane / 16 * 8);
        }
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 16; ++n)
        {
            uint32_t b[4];
            loadMatrices(b, keys + (n * 16 + lane / 16 * 8 + lane % 8) * PITCH + k * 16 + lane / 8 % 2 * 8);
            multiplyAdd<T>(score[2 * n], a, b[0], b[1]);
            multiplyAdd<T>(score[2 * n + 1], a, b[2], b[3]);
        }
    }
}

//! Adds the weighted values of a warp's keys of a tile.
template <typename T, int HEAD, int WARP_KEYS, int PITCH>
TF_DEVICE void multiplyValues(
    float const (&weight)[WARP_KEYS / 8][4], uint16_t const* values, RowState<HEAD>& state)
{
    int const lane = threadIndex() % kWARP_SIZE;
#pragma unroll
    for (int k = 0; k < WARP_KEYS / 16; ++k)
    {
        uint32_t const a[4] = {packPair<T>(weight[2 * k][0], weight[2 * k][1]),
            packPair<T>(weight[2 * k][2], weight[2 * k][3]), packPair<T>(weight[2 * k + 1][0], weight[2 * k + 1][1]),
            packPair<T>(weight[2 * k + 1][2], weight[2 * k + 1][3])};
#pragma unroll
        for (int n = 0; n < HEAD / 16; ++n)
        {
            uint32_t b[4];
            loadMatricesTransposed(b, values + (k * 16 + lane % 16) * PITCH + n * 16 + lane / 16 * 8);
            multiplyAdd<T>(state.out[2 * n], a, b[0], b[1]);
            multiplyAdd<T>(state.out[2 * n + 1], a, b[2], b[3]);
        }
    }
}

//! Writes a pair of neighbouring columns of one row: the output, or this split's partial result.
TF_DEVICE void storePair(AttentionParams const& p, Context const& c, TaskList const& list, int32_t kvHead,
    int32_t firstRow, int64_t slotRow, int32_t row, int32_t column, float x, float y, float factor)
{
    if (column >= p.args.head_size)
    {
        return;
    }
    if (list.splits > 1)
    {
        float* out = list.partialOut + (slotRow + row) * p.args.head_size + column;
        out[0] = x;
        out[1] = y;
        return;
    }
    int64_t const at = outputRow(p, c, kvHead, firstRow + row) + column;
    uint32_t const pair = p.args.activation_dtype == TRTFORGE_BFLOAT16 ? packPair<Bf16>(x * factor, y * factor)
                                                                  : packPair<Fp16>(x * factor, y * factor);
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.args.output) + at) = pair;
}

//! Stores the rows of one warp that holds them whole.
template <int HEAD>
TF_DEVICE void storeRows(AttentionParams const& p, Context const& c, TaskList const& list, Task const& task,
    int32_t kvHead, int32_t split, int32_t rows, int32_t warpRow, RowState<HEAD> const& state)
{
    int const lane = threadIndex() % kWARP_SIZE;
    int64_t const slotRow = partialSlot(p, list, blockX(), kvHead, split) * list.rows;
#pragma unroll
    for (int half = 0; half < 2; ++half)
    {
        int32_t const row = warpRow + lane / 4 + half * 8;
        if (row >= rows)
        {
            continue;
        }
        int32_t const head = kvHead * p.group + (task.row + row) % p.group;
        float const factor = list.splits > 1 ? 1.0F : normalizer(p, state.maximum[half], state.sum[half], head);
        if (list.splits > 1 && lane % 4 == 0)
        {
            list.partialStats[(slotRow + row) * 2] = state.maximum[half];
            list.partialStats[(slotRow + row) * 2 + 1] = state.sum[half];
        }
#pragma unroll
        for (int n = 0; n < HEAD / 8; ++n)
        {
            storePair(p, c, list, kvHead, task.row, slotRow, row, n * 8 + lane % 4 * 2, state.out[n][2 * half],
                state.out[n][2 * half + 1], factor);
        }
    }
}

//! Merges the sixteen rows of WARPS_N warps that walked different keys, and stores them.
template <int HEAD, int WARPS_N>
TF_DEVICE void mergeWarps(AttentionParams const& p, Context const& c, TaskList const& list, Task const& task,
    int32_t kvHead, int32_t split, int32_t rows, RowState<HEAD> const& state, float* shared)
{
    int const lane = threadIndex() % kWARP_SIZE;
    int const warp = threadIndex() / kWARP_SIZE;
    float* stats = shared + WARPS_N * 16 * HEAD;
#pragma unroll
    for (int half = 0; half < 2; ++half)
    {
        int const row = lane / 4 + half * 8;
        if (lane % 4 == 0)
        {
            stats[(warp * 16 + row) * 2] = state.maximum[half];
            stats[(warp * 16 + row) * 2 + 1] = state.sum[half];
        }
#pragma unroll
        for (int n = 0; n < HEAD / 8; ++n)
        {
            float* to = shared + (warp * 16 + row) * HEAD + n * 8 + lane % 4 * 2;
            to[0] = state.out[n][2 * half];
            to[1] = state.out[n][2 * half + 1];
        }
    }
    syncBlock();
    int64_t const slotRow = partialSlot(p, list, blockX(), kvHead, split) * list.rows;
    int32_t const pairs = p.args.head_size / 2;
    for (int32_t i = threadIndex(); i < rows * pairs; i += WARPS_N * kWARP_SIZE)
    {
        int32_t const row = i / pairs;
        int32_t const column = i % pairs * 2;
        float maximum = -INFINITY;
        for (int w = 0; w < WARPS_N; ++w)
        {
            maximum = fmaxf(maximum, stats[(w * 16 + row) * 2]);
        }
        float sum = 0.0F;
        float x = 0.0F;
        float y = 0.0F;
        for (int w = 0; w < WARPS_N; ++w)
        {
            float const weight = weightOf(stats[(w * 16 + row) * 2], maximum);
            float const* from = shared + (w * 16 + row) * HEAD + column;
            sum += weight * stats[(w * 16 + row) * 2 + 1];
            x += weight * from[0];
            y += weight * from[1];
        }
        if (list.splits > 1 && column == 0)
        {
            list.partialStats[(slotRow + row) * 2] = maximum;
            list.partialStats[(slotRow + row) * 2 + 1] = sum;
        }
        int32_t const head = kvHead * p.group + (task.row + row) % p.group;
        float const factor = list.splits > 1 ? 1.0F : normalizer(p, maximum, sum, head);
        storePair(p, c, list, kvHead, task.row, slotRow, row, column, x, y, factor);
    }
}

//! Marks a split without keys, so that the merge leaves it out.
TF_DEVICE void storeEmpty(AttentionParams const& p, TaskList const& list, int32_t kvHead, int32_t split, int32_t rows)
{
    int64_t const slotRow = partialSlot(p, list, blockX(), kvHead, split) * list.rows;
    for (int32_t row = threadIndex(); row < rows; row += blockThreads())
    {
        list.partialStats[(slotRow + row) * 2] = -INFINITY;
        list.partialStats[(slotRow + row) * 2 + 1] = 0.0F;
    }
}

//! Grid (tasks, K, splits).
template <typename T, typename Pool, int HEAD, int WARPS_M, int WARPS_N>
TF_KERNEL((MmaTile<HEAD, WARPS_M, WARPS_N>::kTHREADS), 1)
attentionMma(AttentionParams const p, TaskList const list)
{
    using Tile = MmaTile<HEAD, WARPS_M, WARPS_N>;
    constexpr int kPITCH = Tile::kPITCH;
    constexpr int kWARP_KEYS = Tile::kWARP_KEYS;
    static_assert(WARPS_M == 1 || WARPS_N == 1, "warps share either rows or keys");
    if (refused(p.status) || blockX() >= *list.count)
    {
        return;
    }
    int32_t const kvHead = blockY();
    int32_t const split = blockZ();
    int const lane = threadIndex() % kWARP_SIZE;
    int const warp = threadIndex() / kWARP_SIZE;
    int const warpRow = WARPS_M > 1 ? warp * 16 : 0;
    int const warpKey = WARPS_N > 1 ? warp * kWARP_KEYS : 0;
    Task const task = list.tasks[blockX()];
    Context const c = contextOf(p, task.request);
    int32_t const left = c.fresh * p.group - task.row;
    int32_t const rows = left < Tile::kROWS ? left : Tile::kROWS;
    KeyRange const keys = keysOfSplit(p, c, list, task.row, rows, split, Tile::kKEYS);
    if (keys.begin >= keys.end)
    {
        storeEmpty(p, list, kvHead, split, rows);
        return;
    }
    uint16_t* stages = reinterpret_cast<uint16_t*>(sharedMemory());
    uint16_t* queries = Tile::kQUERY_IN_REGISTERS ? stages : stages + Tile::kOVERLAY / 2;

    loadQueries<HEAD, Tile::kTHREADS, Tile::kROWS, kPITCH>(p, c, kvHead, task.row, rows, queries);
    syncBlock();
    uint32_t query[Tile::kQUERY_IN_REGISTERS ? HEAD / 16 : 1][4];
    if constexpr (Tile::kQUERY_IN_REGISTERS)
    {
#pragma unroll
        for (int k = 0; k < HEAD / 16; ++k)
        {
            loadMatrices(query[k], queries + (warpRow + lane % 16) * kPITCH + k * 16 + lane / 16 * 8);
        }
        syncBlock(); // the queries' memory becomes the first stage
    }

    PoolRows<Pool const> const pool(p, task.request, kvHead);
    auto const load = [&](int32_t begin, int stage)
    {
        loadTile<T, Pool, HEAD, Tile::kTHREADS, Tile::kKEYS, kPITCH, Tile::kTILE_ELEMENTS>(
            pool, begin, keys.end, stages + stage * 2 * Tile::kTILE_ELEMENTS);
    };
    RowView view;
    int32_t lowest = c.base + task.row / p.group;
#pragma unroll
    for (int half = 0; half < 2; ++half)
    {
        int32_t const row = task.row + warpRow + lane / 4 + half * 8;
        view.used[half] = row < task.row + rows;
        view.token[half] = view.used[half] ? row / p.group : 0;
        view.position[half] = windowPosition(p, c, view.token[half]);
    }
    LogitScale const scale = logitScale(p);
    bool const idle = warpRow >= rows; // this warp only helps to load
    // Without a window, tiles that end before every row's own position (or before the tree) are seen whole.
    int32_t const seenBelow = p.args.sliding_window > 0 ? 0 : p.args.tree_mask != nullptr ? c.base : lowest + 1;
    RowState<HEAD> state;
    state.clear();

    load(keys.begin, 0);
    commitCopies();
    int stage = 0;
    for (int32_t begin = keys.begin; begin < keys.end; begin += Tile::kKEYS)
    {
        if (begin + Tile::kKEYS < keys.end)
        {
            load(begin + Tile::kKEYS, stage ^ 1);
        }
        commitCopies();
        waitCopies<1>();
        syncBlock();
        if (!idle)
        {
            uint16_t const* keyTile = stages + stage * 2 * Tile::kTILE_ELEMENTS + warpKey * kPITCH;
            float score[kWARP_KEYS / 8][4];
            multiplyQueries<T, HEAD, kWARP_KEYS, kPITCH, Tile::kQUERY_IN_REGISTERS>(
                query, queries + warpRow * kPITCH, keyTile, score);
            int32_t const firstKey = begin + warpKey;
            bool const allSeen = begin + Tile::kKEYS <= seenBelow && begin + Tile::kKEYS <= keys.end;
            softmaxStep<HEAD, kWARP_KEYS>(p, c, view, scale, firstKey, keys.end, allSeen, score, state);
            multiplyValues<T, HEAD, kWARP_KEYS, kPITCH>(score, keyTile + Tile::kTILE_ELEMENTS, state);
        }
        syncBlock();
        stage ^= 1;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
    {
        state.sum[half] = laneSum<4>(state.sum[half]);
    }
    if constexpr (WARPS_N > 1)
    {
        mergeWarps<HEAD, WARPS_N>(
            p, c, list, task, kvHead, split, rows, state, reinterpret_cast<float*>(sharedMemory()));
    }
    else
    {
        storeRows<HEAD>(p, c, list, task, kvHead, split, rows, warpRow, state);
    }
}

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_ATTENTION_MMA_CUH
