//! \file capi.cu
//! \brief The C ABI over the launchers, for loaders that cannot read C++ (ctypes).
#include "launch.cuh"
#include "trtforge/cuda_abi.h"

#include <cstring>

namespace trtforge
{
namespace cuda
{
namespace
{

thread_local std::string tMessage;

int leave(Status const& status)
{
    if (!status.ok())
    {
        tMessage = status.message;
    }
    return status.code;
}

//! Runs body; both a thrown Refusal and a Status that it returns become a code and a message.
template <typename Body>
int run(Body&& body) noexcept
{
    Status inner;
    Status const outer = answered([&] { inner = body(); });
    try
    {
        return leave(outer.ok() ? inner : outer);
    }
    catch (...)
    {
        return TRTFORGE_OUT_OF_MEMORY;
    }
}

Device deviceOf(trtforge_cuda_call const& call)
{
    Device device;
    Status const asked = queryDevice(call.device, device);
    require(asked.ok(), asked.code, "%s", asked.message.c_str());
    if (call.multiprocessors > 0)
    {
        device.multiprocessors = call.multiprocessors;
    }
    return device;
}

//! Checks that caller and library agree about the structs, then runs body.
template <typename Args, typename Body>
int runWith(Args const* args, trtforge_cuda_call const* call, Body&& body) noexcept
{
    return run(
        [&]
        {
            checkStruct(args);
            checkStruct(call);
            return body();
        });
}

} // namespace
} // namespace cuda
} // namespace trtforge

using namespace trtforge::cuda;

extern "C" int trtforge_cuda_abi(void)
{
    return kABI;
}

extern "C" char const* trtforge_cuda_info(void)
{
    return info();
}

extern "C" char const* trtforge_cuda_last_error(void)
{
    return tMessage.c_str();
}

extern "C" int trtforge_cuda_attention_workspace(
    trtforge_paged_attention_args const* args, trtforge_cuda_call const* call, uint64_t* bytes)
{
    return runWith(args, call,
        [&]
        {
            *bytes = attentionWorkspace(*args, *call, deviceOf(*call));
            return checkAttentionFields(*args);
        });
}

extern "C" int trtforge_cuda_attention_workspace_bound(
    trtforge_paged_attention_args const* args, trtforge_cuda_call const* call, uint64_t* bytes)
{
    return runWith(args, call,
        [&]
        {
            *bytes = attentionWorkspaceBound(*args, *call, deviceOf(*call));
            return checkAttentionFields(*args);
        });
}

extern "C" int trtforge_cuda_paged_attention(
    trtforge_paged_attention_args const* args, trtforge_cuda_call const* call)
{
    return runWith(args, call, [&] { return pagedAttention(*args, *call, deviceOf(*call)); });
}

extern "C" int trtforge_cuda_eagle_tree_build(
    trtforge_eagle_tree_build_args const* args, trtforge_cuda_call const* call)
{
    return runWith(args, call, [&] { return eagleTreeBuild(*args, *call); });
}

extern "C" int trtforge_cuda_eagle_accept(trtforge_eagle_accept_args const* args, trtforge_cuda_call const* call)
{
    return runWith(args, call, [&] { return eagleAccept(*args, *call); });
}

extern "C" int trtforge_cuda_kv_move(trtforge_kv_move_args const* args, trtforge_cuda_call const* call)
{
    return runWith(args, call, [&] { return pagedKvMove(*args, *call); });
}

extern "C" int trtforge_cuda_describe(char const* op, int32_t const* words)
{
    return run([&] { return describeStatus(op, words); });
}

extern "C" int trtforge_cuda_shim_order(int descending)
{
    return run(
        [&]
        {
#if defined(__CUDACC__)
            trtforge::require(false, TRTFORGE_BAD_VALUE, "a GPU orders its threads itself (asked for %d)", descending);
#else
            shim::machine().descending = descending != 0;
#endif
            return Status{};
        });
}

extern "C" char const* trtforge_cuda_shim_launches()
{
    static std::string taken;
#if !defined(__CUDACC__)
    taken.swap(shim::machine().launches);
    shim::machine().launches.clear();
#endif
    return taken.c_str();
}
