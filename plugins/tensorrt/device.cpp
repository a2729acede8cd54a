#include "device.hpp"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#ifdef TRTFORGE_HOST_SHIM
#include <cstring>
#else
#include <cuda_runtime_api.h>
#endif

namespace trtforge::trt
{

namespace
{

int32_t currentOrdinal()
{
    int32_t ordinal = 0;
#ifndef TRTFORGE_HOST_SHIM
    cudaError_t const error = cudaGetDevice(&ordinal);
    if (error != cudaSuccess)
    {
        throw std::runtime_error(std::string("no CUDA device: ") + cudaGetErrorString(error));
    }
#endif
    return ordinal;
}

} // namespace

cuda::Device const& currentDevice()
{
    static std::mutex mutex;
    static std::unordered_map<int32_t, cuda::Device> known; // references into it stay valid
    int32_t const ordinal = currentOrdinal();
    std::lock_guard<std::mutex> const lock(mutex);
    auto const found = known.find(ordinal);
    if (found != known.end())
    {
        return found->second;
    }
    cuda::Device device;
    cuda::Status const status = cuda::queryDevice(ordinal, device);
    if (!status.ok())
    {
        throw std::runtime_error(status.message);
    }
    // Never more than workspaces are sized for.
    int32_t const most = cuda::mostMultiprocessors(device.computeCapability);
    device.multiprocessors = most > 0 ? std::min(device.multiprocessors, most) : device.multiprocessors;
    return known.emplace(ordinal, device).first->second;
}

cuda::Device largestOfArchitecture()
{
    cuda::Device device = currentDevice();
    device.multiprocessors
        = std::max(device.multiprocessors, cuda::mostMultiprocessors(device.computeCapability));
    return device;
}

#ifdef TRTFORGE_HOST_SHIM

void clearBytes(void* target, size_t bytes, cuda::Stream /*stream*/)
{
    std::memset(target, 0, bytes);
}

cuda::Status deviceVerdict(char const* op, int32_t const* words, cuda::Stream /*stream*/)
{
    return cuda::describeStatus(op, words);
}

#else

namespace
{

void require(cudaError_t error, char const* what)
{
    if (error != cudaSuccess)
    {
        throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
    }
}

} // namespace

void clearBytes(void* target, size_t bytes, cuda::Stream stream)
{
    require(cudaMemsetAsync(target, 0, bytes, stream), "clearing memory of the device");
}

cuda::Status deviceVerdict(char const* op, int32_t const* words, cuda::Stream stream)
{
    int32_t host[cuda::kSTATUS_WORDS];
    require(cudaMemcpyAsync(host, words, sizeof(host), cudaMemcpyDeviceToHost, stream), "reading the device's verdict");
    require(cudaStreamSynchronize(stream), "waiting for the device's verdict");
    return cuda::describeStatus(op, host);
}

#endif

void copyUnlessAliased(void* target, void const* source, size_t bytes, cuda::Stream stream)
{
    if (target == source || bytes == 0)
    {
        return;
    }
#ifdef TRTFORGE_HOST_SHIM
    static_cast<void>(stream);
    std::memcpy(target, source, bytes);
#else
    require(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, stream),
        "copying an input that TensorRT did not alias");
#endif
}

} // namespace trtforge::trt
