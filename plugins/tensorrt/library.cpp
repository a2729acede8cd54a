//! \file library.cpp
//! \brief The symbols of the plugin library: what TensorRT looks for, and what trtforge asks without TensorRT.
#include "contract.hpp"
#include "device.hpp"
#include "plugin.hpp"
#include "report.hpp"

#include <NvInferVersion.h>

#include <exception>
#include <string>

#define TRTFORGE_EXPORT extern "C" __attribute__((visibility("default")))

using namespace trtforge::trt;

//! TensorRT calls it when it loads the library.
TRTFORGE_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder)
{
    trtforge::trt::setLoggerFinder(finder);
}

//! TensorRT calls it when it loads the library; the creators live as long as the library.
TRTFORGE_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count)
{
    static Creator attention(pagedAttentionOp(), makePagedAttention);
    static Creator tree(eagleTreeBuildOp(), makeEagleTreeBuild);
    static Creator accept(eagleAcceptOp(), makeEagleAccept);
    static Creator move(pagedKVMoveOp(), makePagedKvMove);
    static nvinfer1::IPluginCreatorInterface* const creators[]{&attention, &tree, &accept, &move};
    count = 4;
    return creators;
}

//! \brief Version of trtforge that the library was built from.
TRTFORGE_EXPORT char const* trtforge_plugin_version()
{
    return TRTFORGE_VERSION;
}

//! \brief Hash of what engines keep of the plugins: an engine loads only with a library of the same one.
TRTFORGE_EXPORT char const* trtforge_plugin_abi()
{
    return abiHash().c_str();
}

//! \brief The text that trtforge_plugin_abi() hashes.
TRTFORGE_EXPORT char const* trtforge_plugin_contract()
{
    return contractText().c_str();
}

//! \brief "10.14.1": the TensorRT headers that the library was compiled with.
TRTFORGE_EXPORT char const* trtforge_plugin_tensorrt()
{
    static std::string const version = std::to_string(NV_TENSORRT_MAJOR) + '.' + std::to_string(NV_TENSORRT_MINOR)
        + '.' + std::to_string(NV_TENSORRT_PATCH);
    return version.c_str();
}

//! \brief JSON of the kernels: ABI, source hash, architectures, compiler, backend.
TRTFORGE_EXPORT char const* trtforge_plugin_kernels()
{
    return trtforge::cuda::info();
}

//! \brief 1 in a checked build, which looks at every index on the device and cannot be captured in a CUDA graph.
TRTFORGE_EXPORT int32_t trtforge_plugin_checked()
{
    return kCHECKED ? 1 : 0;
}

//! \brief 90 for sm_90: the device that this process would use; -1 without one.
TRTFORGE_EXPORT int32_t trtforge_plugin_device_capability()
{
    try
    {
        return currentDevice().computeCapability;
    }
    catch (std::exception const&)
    {
        return -1;
    }
}

#ifdef TRTFORGE_HOST_SHIM
extern "C" char const* trtforge_cuda_shim_launches();

//! \brief The kernels that the shim started since the last call; tests only.
TRTFORGE_EXPORT char const* trtforge_plugin_shim_launches()
{
    return trtforge_cuda_shim_launches();
}
#endif

//! \brief The last refusal of this thread; "" when there was none.
TRTFORGE_EXPORT char const* trtforge_plugin_last_error()
{
    return lastError();
}
