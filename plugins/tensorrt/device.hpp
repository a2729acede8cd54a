//! \file device.hpp
//! \brief The GPU that a plugin runs on, and the one copy that the launchers do not have.
#ifndef TRTFORGE_TENSORRT_DEVICE_HPP
#define TRTFORGE_TENSORRT_DEVICE_HPP

#include "trtforge/cuda/launchers.hpp"

#include <cstddef>

namespace trtforge::trt
{

//! \brief The current device, asked once.
//!
//! \throws std::runtime_error when there is none.
cuda::Device const& currentDevice();

//! \brief The current device with as many multiprocessors as any GPU of its architecture has.
//!
//! A plan keeps the workspace of the GPU that built it, and may run on a larger one (H100 PCIe to H200, or from a MIG
//! slice): workspaces are sized for this device.
//!
//! \throws std::runtime_error when there is none.
cuda::Device largestOfArchitecture();

//! \brief A call on the stream, nothing else set.
inline cuda::Call callOn(cuda::Stream stream)
{
    cuda::Call call{};
    call.struct_size = sizeof(call);
    call.stream = stream;
    return call;
}

//! \brief Copies \p bytes on the stream unless both pointers are one; throws std::runtime_error when it fails.
void copyUnlessAliased(void* target, void const* source, size_t bytes, cuda::Stream stream);

//! \brief Zeros \p bytes at \p target on the stream; throws std::runtime_error when it fails.
void clearBytes(void* target, size_t bytes, cuda::Stream stream);

//! \brief Whether this is a checked build: indices are checked on the device and every call waits for the verdict, so
//! it is slow and cannot be captured in a CUDA graph.
#ifdef TRTFORGE_CHECKED
constexpr bool kCHECKED = true;
#else
constexpr bool kCHECKED = false;
#endif

//! \brief Bytes of workspace that the device's verdict takes, in front of an op's own.
constexpr size_t kSTATUS_BYTES = kCHECKED ? 256 : 0;

//! \brief What the device wrote into \p words of the op named; waits for the stream. Checked builds only.
cuda::Status deviceVerdict(char const* op, int32_t const* words, cuda::Stream stream);

} // namespace trtforge::trt

#endif // TRTFORGE_TENSORRT_DEVICE_HPP
