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

void norm(RmsNormCall const& call, int64_t rows)
{
    requireRows(rows, call.width);
    requireActivation(call.dtype, "dtype");
    requireActivation(call.weightDtype, "weight dtype");
    requirePointers(call.x != nullptr && call.weight != nullptr && call.out != nullptr, rows, "x, weight or out");
    requireRow(call.xStride, call.width, rows, "x");
    requireRow(call.outStride, call.width, rows, "out");
    require(std::isfinite(call.eps) && call.eps >= 0.0F, TRTFORGE_BAD_VALUE, "eps must be at least 0, got %g",
        static_cast<double>(call.eps));
    KernelTable const& table = kernels();
    parallelRanges(rows, threadsFor(rows * call.width, kPARALLEL_ELEMENTS),
        [&](int64_t begin, int64_t end) { table.rmsNorm(call, begin, end); });
}

void rowChecks(RowCall const& call, int64_t rows, int64_t inputWidth)
{
    requireRows(rows, call.width);
    requireActivation(call.dtype, "dtype");
    requirePointers(call.x != nullptr && call.out != nullptr, rows, "x or out");
    requireRow(call.xStride, inputWidth, rows, "x");
    requireRow(call.outStride, call.width, rows, "out");
}

} // namespace
} // namespace trtforge

using namespace trtforge;

extern "C" int trtforge_rms_norm(void const* x, int64_t x_stride, void const* weight, void* out, int64_t out_stride,
    int64_t rows, int64_t width, float eps, float weight_offset, int32_t dtype, int32_t weight_dtype)
{
    return guarded(
        [&]
        {
            norm(RmsNormCall{x, nullptr, weight, out, x_stride, 0, out_stride, width, eps, weight_offset, dtype,
                     weight_dtype},
                rows);
        });
}

extern "C" int trtforge_add_rms_norm(void const* x, int64_t x_stride, void* residual, int64_t residual_stride,
    void const* weight, void* out, int64_t out_stride, int64_t rows, int64_t width, float eps, float weight_offset,
    int32_t dtype, int32_t weight_dtype)
{
    return guarded(
        [&]
        {
            require(residual != nullptr || rows == 0, TRTFORGE_NULL_POINTER, "residual is null");
            requireRow(residual_stride, width, rows, "residual");
            norm(RmsNormCall{x, residual, weight, out, x_stride, residual_stride, out_stride, width, eps,
                     weight_offset, dtype, weight_dtype},
                rows);
        });
}

extern "C" int trtforge_rope(void* query, int64_t query_stride, void* key, int64_t key_stride, float const* cosine,
    float const* sine, int64_t tokens, int32_t num_heads, int32_t num_kv_heads, int32_t head_size, int32_t rotary,
    int32_t dtype)
{
    return guarded(
        [&]
        {
            require(tokens >= 0 && num_heads >= 0 && num_kv_heads >= 0 && head_size > 0, TRTFORGE_BAD_SHAPE,
                "tokens %lld, heads %d, kv heads %d, head size %d", static_cast<long long>(tokens), num_heads,
                num_kv_heads, head_size);
            require(rotary > 0 && rotary <= head_size && rotary % 2 == 0, TRTFORGE_BAD_HEAD_SIZE,
                "rotary size must be even and at most the head size %d, got %d", head_size, rotary);
            requireActivation(dtype, "dtype");
            requirePointers(cosine != nullptr && sine != nullptr, tokens, "cosine or sine");
            requirePointers((query != nullptr || num_heads == 0) && (key != nullptr || num_kv_heads == 0), tokens,
                "query or key");
            requireRow(query_stride, static_cast<int64_t>(num_heads) * head_size, tokens, "query");
            requireRow(key_stride, static_cast<int64_t>(num_kv_heads) * head_size, tokens, "key");
            RopeCall const call{query, key, cosine, sine, query_stride, key_stride, num_heads, num_kv_heads, head_size,
                rotary, dtype};
            KernelTable const& table = kernels();
            int64_t const work = tokens * (num_heads + num_kv_heads) * rotary;
            parallelRanges(tokens, threadsFor(work, kPARALLEL_ELEMENTS),
                [&](int64_t begin, int64_t end) { table.rope(call, begin, end); });
        });
}

extern "C" int trtforge_silu_mul(
    void const* x, int64_t x_stride, void* out, int64_t out_stride, int64_t rows, int64_t width, int32_t dtype)
{
    return guarded(
        [&]
        {
            RowCall const call{x, out, x_stride, out_stride, width, 1.0F, 0, dtype};
            rowChecks(call, rows, 2 * width);
            KernelTable const& table = kernels();
            parallelRanges(rows, threadsFor(rows * width, kPARALLEL_ELEMENTS),
                [&](int64_t begin, int64_t end) { table.siluMul(call, begin, end); });
        });
}

extern "C" int trtforge_fp8_fake_quant(
    void const* x, void* out, int64_t count, float scale, int32_t dequantize, int32_t dtype)
{
    return guarded(
        [&]
        {
            require(count >= 0, TRTFORGE_BAD_SHAPE, "count is %lld", static_cast<long long>(count));
            require(std::isfinite(scale) && scale > 0.0F, TRTFORGE_BAD_VALUE,
                "scale must be finite and positive, got %g", static_cast<double>(scale));
            requireActivation(dtype, "dtype");
            requirePointers(x != nullptr && out != nullptr, count, "x or out");
            RowCall const call{x, out, 0, 0, count, scale, dequantize, dtype};
            KernelTable const& table = kernels();
            // Pieces of 64 elements keep threads off each other's cache lines.
            parallelRanges((count + 63) / 64, threadsFor(count, kPARALLEL_ELEMENTS),
                [&](int64_t begin, int64_t end)
                { table.fp8FakeQuant(call, begin * 64, end * 64 < count ? end * 64 : count); });
        });
}

extern "C" int trtforge_nvfp4_fake_quant(void const* x, int64_t x_stride, void* out, int64_t out_stride, int64_t rows,
    int64_t width, float scale, int32_t dtype)
{
    return guarded(
        [&]
        {
            RowCall const call{x, out, x_stride, out_stride, width, scale, 1, dtype};
            rowChecks(call, rows, width);
            require(width % 16 == 0, TRTFORGE_BAD_SHAPE, "width %lld is not a multiple of the block size 16",
                static_cast<long long>(width));
            require(std::isfinite(scale) && scale >= 0.0F, TRTFORGE_BAD_VALUE,
                "scale must be finite and at least 0, got %g", static_cast<double>(scale));
            KernelTable const& table = kernels();
            parallelRanges(rows, threadsFor(rows * width, kPARALLEL_ELEMENTS),
                [&](int64_t begin, int64_t end) { table.nvfp4FakeQuant(call, begin, end); });
        });
}

extern "C" int trtforge_embedding(void const* table, int64_t vocabulary, int64_t width, int64_t const* ids,
    int64_t tokens, void* out, int64_t out_stride, int32_t table_dtype, int32_t dtype)
{
    return guarded(
        [&]
        {
            requireRows(tokens, width);
            requireActivation(table_dtype, "table dtype");
            requireActivation(dtype, "dtype");
            requirePointers(table != nullptr && ids != nullptr && out != nullptr, tokens, "table, ids or out");
            requireRow(out_stride, width, tokens, "out");
            for (int64_t t = 0; t < tokens; ++t)
            {
                require(ids[t] >= 0 && ids[t] < vocabulary, TRTFORGE_BAD_INDEX,
                    "ids[%lld] is %lld, outside the vocabulary of %lld", static_cast<long long>(t),
                    static_cast<long long>(ids[t]), static_cast<long long>(vocabulary));
            }
            EmbeddingCall const call{table, ids, out, out_stride, width, table_dtype, dtype};
            KernelTable const& chosen = kernels();
            parallelRanges(tokens, threadsFor(tokens * width, kPARALLEL_ELEMENTS),
                [&](int64_t begin, int64_t end) { chosen.embedding(call, begin, end); });
        });
}

extern "C" int trtforge_argmax_logsumexp(float const* logits, int64_t stride, int64_t rows, int64_t width,
    int64_t* index, float* maximum, float* logsumexp)
{
    return guarded(
        [&]
        {
            requireRows(rows, width);
            requirePointers(logits != nullptr, rows, "logits");
            requireRow(stride, width, rows, "logits");
            LogitsCall const call{logits, stride, width, index, maximum, logsumexp};
            KernelTable const& table = kernels();
            parallelRanges(rows, threadsFor(rows * width, kPARALLEL_ELEMENTS),
                [&](int64_t begin, int64_t end) { table.argmaxLogsumexp(call, begin, end); });
        });
}
