//! \file library.cu
//! \brief The library itself: version, information, the device, and messages of what a device refused.
#include "launch.cuh"

#include <cstdio>

#ifndef TRTFORGE_SOURCE_HASH
#define TRTFORGE_SOURCE_HASH "unknown"
#endif
#ifndef TRTFORGE_CUDA_ARCHITECTURES
#define TRTFORGE_CUDA_ARCHITECTURES ""
#endif

namespace trtforge
{
namespace cuda
{

int32_t abi() noexcept
{
    return kABI;
}

char const* sourceHash() noexcept
{
    return TRTFORGE_SOURCE_HASH;
}

char const* info() noexcept
{
#if defined(__CUDACC__)
    static char text[512];
    std::snprintf(text, sizeof(text),
        "{\"abi\": %d, \"backend\": \"cuda\", \"architectures\": \"%s\", \"compiler\": \"nvcc %d.%d.%d\", "
        "\"source_hash\": \"%s\"}",
        kABI, TRTFORGE_CUDA_ARCHITECTURES, __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__, __CUDACC_VER_BUILD__,
        TRTFORGE_SOURCE_HASH);
#else
    static char text[512];
    std::snprintf(text, sizeof(text),
        "{\"abi\": %d, \"backend\": \"host shim\", \"architectures\": \"\", \"compiler\": \"g++ %s\", "
        "\"source_hash\": \"%s\"}",
        kABI, __VERSION__, TRTFORGE_SOURCE_HASH);
#endif
    return text;
}

Status queryDevice(int32_t ordinal, Device& device) noexcept
{
    return answered(
        [&]
        {
#if defined(__CUDACC__)
            struct Wanted
            {
                cudaDeviceAttr attribute;
                int value;
            };
            Wanted wanted[] = {{cudaDevAttrComputeCapabilityMajor, 0}, {cudaDevAttrComputeCapabilityMinor, 0},
                {cudaDevAttrMultiProcessorCount, 0}, {cudaDevAttrMaxSharedMemoryPerBlockOptin, 0}};
            for (Wanted& w : wanted)
            {
                cudaError_t const asked = cudaDeviceGetAttribute(&w.value, w.attribute, ordinal);
                require(asked == cudaSuccess, TRTFORGE_DEVICE_ERROR, "device %d: %s", ordinal,
                    cudaGetErrorString(asked));
            }
            device = Device{ordinal, wanted[0].value * 10 + wanted[1].value, wanted[2].value, wanted[3].value};
            require(device.computeCapability >= 80, TRTFORGE_DEVICE_ERROR,
                "device %d has compute capability %d.%d; the kernels need 8.0", ordinal, wanted[0].value,
                wanted[1].value);
#else
            device = Device{ordinal, 80, 4, 101376};
#endif
        });
}

int32_t mostMultiprocessors(int32_t computeCapability) noexcept
{
    // Whole dies; products have some multiprocessors switched off. Those of B200, B300 and GB10 are not confirmed:
    // a number that is too small costs splits only, since the running GPU's count is held to it.
    switch (computeCapability)
    {
    case 80: return 128; // GA100
    case 86: return 84;  // GA102
    case 89: return 144; // AD102
    case 90: return 144; // GH100
    case 100: return 160; // B200: two dies
    case 103: return 160; // B300: two dies
    case 120: return 192; // GB202
    case 121: return 48;  // GB10
    default: return 0;
    }
}

Status describeStatus(char const* op, int32_t const words[kSTATUS_WORDS]) noexcept
{
    return answered(
        [&]
        {
            int32_t const* n = words + 1;
            switch (words[0])
            {
            case TRTFORGE_OK: return;
            case TRTFORGE_BAD_QUERY_START:
                require(false, words[0],
                    "%s: request %d has query_start %d to %d of %d tokens: must rise from 0 to the end and keep the "
                    "promised number of new tokens",
                    op, n[0], n[2], n[1], n[3]);
                break;
            case TRTFORGE_BAD_SEQUENCE_LENGTH:
                require(false, words[0], "%s: request %d has length %d (%d before or new, limit %d)", op, n[0], n[1],
                    n[2], n[3]);
                break;
            case TRTFORGE_BAD_TREE_MASK:
                require(false, words[0], "%s: request %d has %d new tokens but the tree mask is %d wide", op, n[0],
                    n[2], n[3]);
                break;
            case TRTFORGE_BAD_BLOCK_TABLE:
                require(false, words[0], "%s: block_table[%d][%d] is %d, outside the pool of %d blocks", op, n[0],
                    n[1], n[2], n[3]);
                break;
            case TRTFORGE_BAD_INDEX:
                require(false, words[0], "%s: path[%d][%d] is %d: nodes must rise along a path", op, n[0], n[1], n[2]);
                break;
            default: require(false, TRTFORGE_BAD_STRUCT, "%s: status word %d has no meaning", op, words[0]);
            }
        });
}

} // namespace cuda
} // namespace trtforge
