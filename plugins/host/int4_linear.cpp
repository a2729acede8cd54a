//! \file int4_linear.cpp
//! \brief Entry point of the INT4 linear: checks, then panels of outputs over threads.
#include "runtime.hpp"

namespace trtforge
{
namespace
{

//! Multiply-adds from which a second thread pays.
constexpr int64_t kPARALLEL_WORK = 1 << 17;

void check(trtforge_int4_linear_args const& call)
{
    require(call.rows >= 0 && call.outputs > 0 && call.inputs > 0, TRTFORGE_BAD_SHAPE,
        "rows %lld, outputs %lld, inputs %lld", static_cast<long long>(call.rows),
        static_cast<long long>(call.outputs), static_cast<long long>(call.inputs));
    require(call.group > 0 && call.group % 8 == 0 && call.inputs % call.group == 0, TRTFORGE_BAD_SHAPE,
        "groups of %lld do not divide %lld inputs in blocks of 8", static_cast<long long>(call.group),
        static_cast<long long>(call.inputs));
    requireActivation(call.x_dtype, "x dtype");
    requireActivation(call.out_dtype, "out dtype");
    require(call.weights != nullptr && call.scales != nullptr, TRTFORGE_NULL_POINTER, "weights or scales is null");
    require((call.x != nullptr && call.out != nullptr) || call.rows == 0, TRTFORGE_NULL_POINTER, "x or out is null");
    requireRow(call.x_stride, call.inputs, call.rows, "x");
    requireRow(call.out_stride, call.outputs, call.rows, "out");
}

} // namespace
} // namespace trtforge

using namespace trtforge;

extern "C" int trtforge_int4_linear(trtforge_int4_linear_args const* args)
{
    return guarded(
        [&]
        {
            checkStruct(args);
            trtforge_int4_linear_args call = *args;
            check(call);
            if (call.rows == 0)
            {
                return;
            }
            KernelTable const& table = kernels();
            if (call.x_dtype == TRTFORGE_FLOAT16 || (call.x_dtype == TRTFORGE_BFLOAT16 && !table.int4Pairs))
            {
                size_t const bytes = static_cast<size_t>(call.rows * call.inputs) * sizeof(float);
                float* const wide = static_cast<float*>(threadMemory(1, bytes));
                parallelRanges(call.rows, threadsFor(call.rows * call.inputs, kPARALLEL_WORK),
                    [&](int64_t begin, int64_t end) { table.int4Widen(call, wide, begin, end); });
                call.x = wide;
                call.x_stride = call.inputs;
                call.x_dtype = TRTFORGE_FLOAT32;
            }
            int64_t const panels = (call.outputs + kINT4_PANEL - 1) / kINT4_PANEL;
            size_t const scratch = static_cast<size_t>(table.int4Scratch(call)) * sizeof(float);
            parallelRanges(panels, threadsFor(call.rows * call.outputs * call.inputs, kPARALLEL_WORK),
                [&](int64_t begin, int64_t end)
                { table.int4Linear(call, begin, end, static_cast<float*>(threadMemory(0, scratch))); });
        });
}
