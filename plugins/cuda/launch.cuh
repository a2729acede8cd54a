//! \file launch.cuh
//! \brief How the launchers start a kernel (on a stream, or under the host shim) and report what went wrong.
#ifndef TRTFORGE_CUDA_LAUNCH_CUH
#define TRTFORGE_CUDA_LAUNCH_CUH

#include "trtforge/cuda/launchers.hpp"
#include "trtforge/cuda/platform.cuh"
#include "trtforge/validate.hpp"

#include <exception>
#include <string>

namespace trtforge
{
namespace cuda
{

inline Stream streamOf(Call const& call)
{
    return static_cast<Stream>(call.stream);
}

struct LaunchShape
{
    int64_t x{1};
    int64_t y{1};
    int64_t z{1};
    int32_t threads{0};
    int32_t sharedBytes{0};
};

//! Starts a kernel; an empty grid starts nothing. Throws Refusal when the driver refuses.
template <typename... P>
void launch(void (*kernel)(P...), LaunchShape const& shape, Stream stream, P... arguments)
{
    if (shape.x <= 0 || shape.y <= 0 || shape.z <= 0)
    {
        return;
    }
    require(shape.x <= 0x7fffffff && shape.y <= 65535 && shape.z <= 65535, TRTFORGE_BAD_SHAPE,
        "a grid of %lld x %lld x %lld blocks is more than a GPU takes", static_cast<long long>(shape.x),
        static_cast<long long>(shape.y), static_cast<long long>(shape.z));
#if defined(__CUDACC__)
    if (shape.sharedBytes > 48 * 1024)
    {
        cudaError_t const allowed
            = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.sharedBytes);
        require(allowed == cudaSuccess, TRTFORGE_DEVICE_ERROR, "%d bytes of shared memory: %s", shape.sharedBytes,
            cudaGetErrorString(allowed));
    }
    dim3 const grid(static_cast<unsigned>(shape.x), static_cast<unsigned>(shape.y), static_cast<unsigned>(shape.z));
    void* pointers[] = {static_cast<void*>(&arguments)...};
    cudaError_t const started = cudaLaunchKernel(reinterpret_cast<void const*>(kernel), grid,
        dim3(static_cast<unsigned>(shape.threads)), pointers, static_cast<size_t>(shape.sharedBytes), stream);
    require(started == cudaSuccess, TRTFORGE_DEVICE_ERROR, "the kernel was not launched: %s",
        cudaGetErrorString(started));
#else
    static_cast<void>(stream);
    shim::launch(shim::Dim3{static_cast<uint32_t>(shape.x), static_cast<uint32_t>(shape.y),
                     static_cast<uint32_t>(shape.z)},
        shape.threads, static_cast<size_t>(shape.sharedBytes), [&] { kernel(arguments...); });
#endif
}

//! Runs body; a Refusal becomes a Status.
template <typename Body>
Status answered(Body&& body) noexcept
{
    try
    {
        body();
        return Status{};
    }
    catch (Refusal const& refusal)
    {
        return Status{refusal.code, refusal.message};
    }
    catch (std::exception const& error)
    {
        return Status{TRTFORGE_OUT_OF_MEMORY, error.what()};
    }
}

inline void requireAligned(void const* pointer, char const* what)
{
    require(reinterpret_cast<uintptr_t>(pointer) % 16 == 0, TRTFORGE_BAD_STRIDE, "%s must be aligned to 16 bytes",
        what);
}

inline size_t aligned256(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_LAUNCH_CUH
