//! \file attention_rows.hpp
//! \brief A task's query rows: scratch memory, what each row may see, softmax state, merging and output.
#ifndef TRTFORGE_ATTENTION_ROWS_HPP
#define TRTFORGE_ATTENTION_ROWS_HPP

#include "trtforge/attention_tiles.hpp"

namespace trtforge
{
namespace TRTFORGE_ISA_NAMESPACE
{

struct Scratch
{
    float* query;   //!< [rows, P], P = padded head
    float* current; //!< [rows, P] accumulators of the chunk
    float* total;   //!< [rows, P] accumulators of the finished chunks
    float* score;   //!< [rows, 64]
    float* maximum; //!< [rows] of the chunk
    float* sum;
    float* totalMaximum;
    float* totalSum;
    float* factor;
    int32_t* low;  //!< [rows] first visible position
    int32_t* high; //!< [rows] end of the visible positions
    float* key;    //!< [64, P]
    float* value;
};

static size_t attentionScratch(AttentionCall const& call)
{
    size_t const rows = static_cast<size_t>(call.maxRows);
    size_t const padded = static_cast<size_t>(call.paddedHead);
    return sizeof(float) * (3 * rows * padded + rows * kTILE + 7 * ((rows + 15) / 16 * 16) + 2 * kTILE * padded);
}

TRTFORGE_INLINE Scratch carve(AttentionCall const& call, void* memory)
{
    size_t const rows = static_cast<size_t>(call.maxRows);
    size_t const padded = static_cast<size_t>(call.paddedHead);
    size_t const column = (rows + 15) / 16 * 16;
    Scratch s;
    float* p = static_cast<float*>(memory);
    s.query = p;
    p += rows * padded;
    s.current = p;
    p += rows * padded;
    s.total = p;
    p += rows * padded;
    s.key = p;
    p += kTILE * padded;
    s.value = p;
    p += kTILE * padded;
    s.score = p;
    p += rows * kTILE;
    s.maximum = p;
    p += column;
    s.sum = p;
    p += column;
    s.totalMaximum = p;
    p += column;
    s.totalSum = p;
    p += column;
    s.factor = p;
    p += column;
    s.low = reinterpret_cast<int32_t*>(p);
    p += column;
    s.high = reinterpret_cast<int32_t*>(p);
    return s;
}

static int64_t partialFloats(AttentionCall const& call, int32_t rows)
{
    return static_cast<int64_t>(rows) * (call.paddedHead + 2);
}

//! A call's constants and one task's rows.
struct Rows
{
    trtforge_paged_attention_args const* args;
    Scratch scratch;
    int32_t count;
    int32_t group;
    int32_t padded;
    int32_t head;
    int32_t tokenBegin;   //!< in the request
    int32_t globalToken;  //!< row of the request's first new token in query and tree mask
    int32_t base;         //!< context length before the new tokens
    int32_t newTokens;
    int32_t lowest;  //!< smallest visible position of any row
    int32_t highest; //!< end of the visible positions of all rows
};

static Rows describeRows(
    AttentionCall const& call, int32_t request, int32_t tokenBegin, int32_t tokenCount, void* memory)
{
    trtforge_paged_attention_args const& a = *call.args;
    Rows rows;
    rows.args = call.args;
    rows.scratch = carve(call, memory);
    rows.group = call.group;
    rows.count = tokenCount * call.group;
    rows.padded = call.paddedHead;
    rows.head = a.head_size;
    rows.tokenBegin = tokenBegin;
    rows.globalToken = a.query_start[request];
    rows.newTokens = a.query_start[request + 1] - a.query_start[request];
    rows.base = a.sequence_lengths[request] - rows.newTokens;
    rows.lowest = 0x7fffffff;
    rows.highest = 0;
    for (int32_t t = 0; t < tokenCount; ++t)
    {
        int32_t const token = tokenBegin + t;
        int32_t position = rows.base + token;
        int32_t high = position + 1;
        if (a.tree_mask != nullptr)
        {
            // The node's depth, counted from its ancestors, gives its position in the text.
            uint8_t const* mask = a.tree_mask + (rows.globalToken + token) * a.tree_mask_stride;
            int32_t seen = 0;
            for (int32_t j = 0; j < rows.newTokens; ++j)
            {
                seen += mask[j] != 0 ? 1 : 0;
            }
            position = rows.base + larger(seen, 1) - 1;
            high = rows.base + rows.newTokens;
        }
        int32_t low = 0;
        if (a.sliding_window > 0)
        {
            low = larger(0, position - a.sliding_window + 1);
            low = a.tree_mask != nullptr ? smaller(low, rows.base) : low;
        }
        rows.lowest = smaller(rows.lowest, low);
        rows.highest = larger(rows.highest, high);
        for (int32_t g = 0; g < call.group; ++g)
        {
            rows.scratch.low[t * call.group + g] = low;
            rows.scratch.high[t * call.group + g] = high;
        }
    }
    return rows;
}

//! Rows of the scratch take the order of the pool type's groups.
template <typename T, typename Pool>
static void loadQueries(Rows const& rows, int32_t kvHead, float multiplier)
{
    trtforge_paged_attention_args const& a = *rows.args;
    Vec const m = set1(multiplier);
    for (int32_t r = 0; r < rows.count; ++r)
    {
        int64_t const token = rows.globalToken + rows.tokenBegin + r / rows.group;
        int64_t const column = static_cast<int64_t>(kvHead * rows.group + r % rows.group) * rows.head;
        T const* from = static_cast<T const*>(a.query) + token * a.query_stride + column;
        float* to = rows.scratch.query + static_cast<int64_t>(r) * rows.padded;
        int32_t e = 0;
        constexpr int kPARTS = Parts<Pool>::value;
        for (; e < groupedElements<Pool>(rows.head); e += kPARTS * kLANES)
        {
            for (int i = 0; i < kPARTS * kLANES; ++i)
            {
                to[e + i] = toFloat(from[e + groupElement(kPARTS, i / kLANES, i % kLANES)]) * multiplier;
            }
        }
        for (; e + kLANES <= rows.head; e += kLANES)
        {
            store(to + e, mul(load(from + e), m));
        }
        if (kLANES > 8 && e < rows.head)
        {
            store(to + e, mul(loadHalf(from + e), m));
        }
    }
}

//! Turns the scores of one row into weights and updates its running maximum and sum.
static __attribute__((noinline)) void softmaxRow(Rows const& rows, int32_t r, int32_t position, int32_t end, float capped)
{
    Scratch const& s = rows.scratch;
    trtforge_paged_attention_args const& a = *rows.args;
    float* score = s.score + static_cast<int64_t>(r) * kTILE;
    int32_t const padded = (end + kLANES - 1) / kLANES * kLANES;
    if (capped != 0.0F)
    {
        for (int32_t j = 0; j < padded; j += kLANES)
        {
            store(score + j, mul(tanh(load(score + j)), set1(capped)));
        }
    }
    int32_t const low = smaller(larger(0, s.low[r] - position), padded);
    int32_t const high = smaller(larger(low, s.high[r] - position), smaller(end, padded));
    for (int32_t j = 0; j < low; ++j)
    {
        score[j] = kMINUS_INFINITY;
    }
    for (int32_t j = larger(high, low); j < padded; ++j)
    {
        score[j] = kMINUS_INFINITY;
    }
    if (a.tree_mask != nullptr && position + end > rows.base)
    {
        int64_t const token = rows.globalToken + rows.tokenBegin + r / rows.group;
        uint8_t const* mask = a.tree_mask + token * a.tree_mask_stride;
        for (int32_t j = larger(0, rows.base - position); j < high; ++j)
        {
            score[j] = mask[position + j - rows.base] != 0 ? score[j] : kMINUS_INFINITY;
        }
    }
    Vec top = set1(kMINUS_INFINITY);
    for (int32_t j = 0; j < padded; j += kLANES)
    {
        top = max(load(score + j), top);
    }
    float const before = s.maximum[r];
    float const tileMaximum = maxLanes(top);
    float const now = tileMaximum > before ? tileMaximum : before;
    if (now == kMINUS_INFINITY)
    {
        // Nothing visible here, or nothing but NaN, which must not come out as zeros.
        bool nan = false;
        for (int32_t j = 0; j < padded; ++j)
        {
            nan = nan || score[j] != score[j];
            score[j] = 0.0F;
        }
        s.factor[r] = 1.0F;
        if (nan)
        {
            s.maximum[r] = 0.0F;
            s.sum[r] = __builtin_nanf("");
        }
        return;
    }
    Vec const shift = set1(now);
    Vec sum = zero();
    for (int32_t j = 0; j < padded; j += kLANES)
    {
        Vec const p = exp2(sub(load(score + j), shift));
        store(score + j, p);
        sum = add(sum, p);
    }
    float const factor = before == now ? 1.0F : exp2One(before - now);
    s.factor[r] = factor;
    s.maximum[r] = now;
    s.sum[r] = s.sum[r] * factor + sumLanes(sum);
}

static void clearRows(Rows const& rows, float* accumulator, float* maximum, float* sum)
{
    __builtin_memset(accumulator, 0, sizeof(float) * static_cast<size_t>(rows.count) * rows.padded);
    for (int32_t r = 0; r < rows.count; ++r)
    {
        maximum[r] = kMINUS_INFINITY;
        sum[r] = 0.0F;
    }
}

//! total = total (+) state, in the order of the chunks.
static void mergeState(
    Rows const& rows, float const* accumulator, float const* maximum, float const* sum)
{
    Scratch const& s = rows.scratch;
    for (int32_t r = 0; r < rows.count; ++r)
    {
        if (maximum[r] == kMINUS_INFINITY)
        {
            continue;
        }
        float const before = s.totalMaximum[r];
        float const now = maximum[r] > before ? maximum[r] : before;
        float const old = before == kMINUS_INFINITY ? 0.0F : exp2One(before - now);
        float const fresh = exp2One(maximum[r] - now);
        s.totalMaximum[r] = now;
        s.totalSum[r] = s.totalSum[r] * old + sum[r] * fresh;
        float* total = s.total + static_cast<int64_t>(r) * rows.padded;
        float const* from = accumulator + static_cast<int64_t>(r) * rows.padded;
        for (int32_t e = 0; e < rows.padded; e += kLANES)
        {
            store(total + e, fma(load(from + e), set1(fresh), mul(load(total + e), set1(old))));
        }
    }
}

//! Parts of a pool's type.
TRTFORGE_INLINE int partsOf(int32_t pool)
{
    switch (pool)
    {
    case TRTFORGE_BFLOAT16: return Parts<Bf16>::value;
    case TRTFORGE_FLOAT8_E4M3: return Parts<E4m3>::value;
    default: return 1;
    }
}

template <typename T>
static void writeRows(Rows const& rows, int32_t kvHead, float multiplier)
{
    Scratch const& s = rows.scratch;
    trtforge_paged_attention_args const& a = *rows.args;
    int const parts = partsOf(a.pool_dtype);
    int32_t const grouped = parts == 1 ? 0 : rows.head / (parts * kLANES) * (parts * kLANES);
    for (int32_t r = 0; r < rows.count; ++r)
    {
        int32_t const head = kvHead * rows.group + r % rows.group;
        int64_t const token = rows.globalToken + rows.tokenBegin + r / rows.group;
        float sum = s.totalSum[r];
        float rescale = 1.0F;
        if (a.sinks != nullptr)
        {
            float const sink = a.sinks[head] * kLOG2E;
            float const now = sink > s.totalMaximum[r] ? sink : s.totalMaximum[r];
            rescale = s.totalMaximum[r] == kMINUS_INFINITY ? 0.0F : exp2One(s.totalMaximum[r] - now);
            sum = sum * rescale + exp2One(sink - now);
        }
        // A row that sees no key at all gives zeros.
        Vec const m = set1(sum == 0.0F ? 0.0F : rescale * multiplier / sum);
        float const* from = s.total + static_cast<int64_t>(r) * rows.padded;
        T* to = static_cast<T*>(a.output) + token * a.output_stride + static_cast<int64_t>(head) * rows.head;
        int32_t e = 0;
        for (; e < grouped; e += parts * kLANES)
        {
            float ordered[4 * kLANES];
            for (int i = 0; i < parts * kLANES; ++i)
            {
                ordered[groupElement(parts, i / kLANES, i % kLANES)] = from[e + i];
            }
            for (int part = 0; part < parts; ++part)
            {
                store(to + e + part * kLANES, mul(load(ordered + part * kLANES), m));
            }
        }
        for (; e + kLANES <= rows.head; e += kLANES)
        {
            store(to + e, mul(load(from + e), m));
        }
        if (e < rows.head)
        {
            storeSome(to + e, mul(load(from + e), m), rows.head - e);
        }
    }
}

static void writeOutput(Rows const& rows, int32_t kvHead, float multiplier)
{
    switch (rows.args->activation_dtype)
    {
    case TRTFORGE_FLOAT32: writeRows<float>(rows, kvHead, multiplier); break;
    case TRTFORGE_BFLOAT16: writeRows<Bf16>(rows, kvHead, multiplier); break;
    default: writeRows<Fp16>(rows, kvHead, multiplier); break;
    }
}

} // namespace TRTFORGE_ISA_NAMESPACE
} // namespace trtforge

#endif // TRTFORGE_ATTENTION_ROWS_HPP
