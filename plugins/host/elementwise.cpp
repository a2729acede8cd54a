//! \file elementwise.cpp
//! \brief Entry points of the fused elementwise helpers: checks, then rows over threads when there are enough.
#include "runtime.hpp"

namespace trtforge
{
namespace
{

//! Elements from which a second thread pays.
constexpr int64_t kPARALLEL_ELEMENTS = 32768;

void requireRows(int64_t rows, int64_t width)
{
    require(rows >= 0 && width > 0, TRTFORGE_BAD_SHAPE, "rows is %lld and width is %lld", static_cast<long long>(rows),
        static_cast<long long>(width));
}

void requirePointers(bool given, int64_t rows, char const* what)
{
    require(given || rows == 0, TRTFORGE_NULL_POINTER, "%s is null", what);
}

//! What every op with one input and one output of rows asks.
template <typename Args>
void checkRows(Args const& a, int64_t inputWidth)
{
    requireRows(a.rows, a.width);
    requireActivation(a.dtype, "dtype");
    requirePointers(a.x != nullptr && a.out != nullptr, a.rows, "x or out");
    requireRow(a.x_stride, inputWidth, a.rows, "x");
    requireRow(a.out_stride, a.width, a.rows, "out");
}

void check(trtforge_rms_norm_args const& a)
{
    checkRows(a, a.width);
    requireActivation(a.weight_dtype, "weight dtype");
    requirePointers(a.weight != nullptr, a.rows, "weight");
    requireRow(a.residual_stride, a.width, a.residual == nullptr ? 0 : a.rows, "residual");
    require(std::isfinite(a.eps) && a.eps >= 0.0F, TRTFORGE_BAD_VALUE, "eps must be at least 0, got %g",
        static_cast<double>(a.eps));
}

void check(trtforge_rope_args const& a)
{
    require(a.tokens >= 0 && a.num_heads >= 0 && a.num_kv_heads >= 0 && a.head_size > 0, TRTFORGE_BAD_SHAPE,
        "tokens %lld, heads %d, kv heads %d, head size %d", static_cast<long long>(a.tokens), a.num_heads,
        a.num_kv_heads, a.head_size);
    require(a.rotary > 0 && a.rotary <= a.head_size && a.rotary % 2 == 0, TRTFORGE_BAD_HEAD_SIZE,
        "rotary size must be even and at most the head size %d, got %d", a.head_size, a.rotary);
    requireActivation(a.dtype, "dtype");
    requirePointers(a.cosine != nullptr && a.sine != nullptr, a.tokens, "cosine or sine");
    requirePointers((a.query != nullptr || a.num_heads == 0) && (a.key != nullptr || a.num_kv_heads == 0), a.tokens,
        "query or key");
    requireRow(a.query_stride, static_cast<int64_t>(a.num_heads) * a.head_size, a.tokens, "query");
    requireRow(a.key_stride, static_cast<int64_t>(a.num_kv_heads) * a.head_size, a.tokens, "key");
}

void check(trtforge_silu_mul_args const& a)
{
    checkRows(a, 2 * a.width);
}

void check(trtforge_fp8_fake_quant_args const& a)
{
    require(a.count >= 0, TRTFORGE_BAD_SHAPE, "count is %lld", static_cast<long long>(a.count));
    require(std::isfinite(a.scale) && a.scale > 0.0F, TRTFORGE_BAD_VALUE, "scale must be finite and positive, got %g",
        static_cast<double>(a.scale));
    requireActivation(a.dtype, "dtype");
    requirePointers(a.x != nullptr && a.out != nullptr, a.count, "x or out");
}

void check(trtforge_nvfp4_fake_quant_args const& a)
{
    checkRows(a, a.width);
    require(a.width % 16 == 0, TRTFORGE_BAD_SHAPE, "width %lld is not a multiple of the block size 16",
        static_cast<long long>(a.width));
    require(std::isfinite(a.scale) && a.scale >= 0.0F, TRTFORGE_BAD_VALUE, "scale must be finite and at least 0, got %g",
        static_cast<double>(a.scale));
}

void check(trtforge_embedding_args const& a)
{
    requireRows(a.tokens, a.width);
    requireActivation(a.table_dtype, "table dtype");
    requireActivation(a.dtype, "dtype");
    requirePointers(a.table != nullptr && a.ids != nullptr && a.out != nullptr, a.tokens, "table, ids or out");
    requireRow(a.out_stride, a.width, a.tokens, "out");
    for (int64_t t = 0; t < a.tokens; ++t)
    {
        require(a.ids[t] >= 0 && a.ids[t] < a.vocabulary, TRTFORGE_BAD_INDEX,
            "ids[%lld] is %lld, outside the vocabulary of %lld", static_cast<long long>(t),
            static_cast<long long>(a.ids[t]), static_cast<long long>(a.vocabulary));
    }
}

void check(trtforge_argmax_logsumexp_args const& a)
{
    requireRows(a.rows, a.width);
    requirePointers(a.logits != nullptr, a.rows, "logits");
    requireRow(a.logits_stride, a.width, a.rows, "logits");
}

//! Checks the arguments, then runs a kernel of the chosen instruction set over rows.
template <typename Args>
int overRows(Args const* args, void (*KernelTable::*kernel)(Args const&, int64_t, int64_t), int64_t Args::*rows,
    int64_t (*work)(Args const&))
{
    return guarded(
        [&]
        {
            checkStruct(args);
            check(*args);
            auto const run = kernels().*kernel;
            parallelRanges(args->*rows, threadsFor(work(*args), kPARALLEL_ELEMENTS),
                [&](int64_t begin, int64_t end) { run(*args, begin, end); });
        });
}

template <typename Args>
int64_t elements(Args const& a)
{
    return a.rows * a.width;
}

} // namespace
} // namespace trtforge

using namespace trtforge;

extern "C" int trtforge_rms_norm(trtforge_rms_norm_args const* args)
{
    return overRows(args, &KernelTable::rmsNorm, &trtforge_rms_norm_args::rows, elements);
}

extern "C" int trtforge_rope(trtforge_rope_args const* args)
{
    return overRows<trtforge_rope_args>(args, &KernelTable::rope, &trtforge_rope_args::tokens,
        [](trtforge_rope_args const& a) { return a.tokens * (a.num_heads + a.num_kv_heads) * a.rotary; });
}

extern "C" int trtforge_silu_mul(trtforge_silu_mul_args const* args)
{
    return overRows(args, &KernelTable::siluMul, &trtforge_silu_mul_args::rows, elements);
}

extern "C" int trtforge_fp8_fake_quant(trtforge_fp8_fake_quant_args const* args)
{
    return guarded(
        [&]
        {
            checkStruct(args);
            check(*args);
            int64_t const count = args->count;
            KernelTable const& table = kernels();
            // Pieces of 64 elements keep threads off each other's cache lines.
            parallelRanges((count + 63) / 64, threadsFor(count, kPARALLEL_ELEMENTS),
                [&](int64_t begin, int64_t end)
                { table.fp8FakeQuant(*args, begin * 64, end * 64 < count ? end * 64 : count); });
        });
}

extern "C" int trtforge_nvfp4_fake_quant(trtforge_nvfp4_fake_quant_args const* args)
{
    return overRows(args, &KernelTable::nvfp4FakeQuant, &trtforge_nvfp4_fake_quant_args::rows, elements);
}

extern "C" int trtforge_embedding(trtforge_embedding_args const* args)
{
    return overRows<trtforge_embedding_args>(args, &KernelTable::embedding, &trtforge_embedding_args::tokens,
        [](trtforge_embedding_args const& a) { return a.tokens * a.width; });
}

extern "C" int trtforge_argmax_logsumexp(trtforge_argmax_logsumexp_args const* args)
{
    return overRows(args, &KernelTable::argmaxLogsumexp, &trtforge_argmax_logsumexp_args::rows, elements);
}
