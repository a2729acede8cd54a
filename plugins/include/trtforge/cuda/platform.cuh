//! \file platform.cuh
//! \brief The few machine operations that the kernels are written in; each exists for nvcc and for the host shim.
//!
//! Kernels include this file and nothing of CUDA, so the very same source runs under `host_shim.hpp` when a plain
//! C++ compiler reads it.
#ifndef TRTFORGE_CUDA_PLATFORM_CUH
#define TRTFORGE_CUDA_PLATFORM_CUH

#include "trtforge/both.hpp"
#include "trtforge/types.hpp"

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#define TF_DEVICE __device__ __forceinline__
#define TF_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#else
#include "trtforge/cuda/host_shim.hpp"
#define TF_DEVICE inline
#define TF_KERNEL(threads, blocks) void
#endif

namespace trtforge
{
namespace cuda
{

constexpr int kWARP_SIZE = 32;
constexpr float kLOG2E = 1.4426950408889634F;

//! Sixteen and eight bytes that move in one instruction.
struct alignas(16) Vec16
{
    uint32_t word[4];
};
struct alignas(8) Vec8
{
    uint32_t word[2];
};

//! x, held between low and high.
TF_BOTH int32_t heldIn(int32_t x, int32_t low, int32_t high)
{
    return x < low ? low : x > high ? high : x;
}

TF_BOTH uint32_t asBits(float x)
{
#if defined(__CUDA_ARCH__)
    return __float_as_uint(x);
#else
    uint32_t u;
    __builtin_memcpy(&u, &x, 4);
    return u;
#endif
}

TF_BOTH float asFloat(uint32_t u)
{
#if defined(__CUDA_ARCH__)
    return __uint_as_float(u);
#else
    float x;
    __builtin_memcpy(&x, &u, 4);
    return x;
#endif
}

#if defined(__CUDACC__)

TF_DEVICE int threadIndex()
{
    return static_cast<int>(threadIdx.x);
}
TF_DEVICE int blockThreads()
{
    return static_cast<int>(blockDim.x);
}
TF_DEVICE int blockX()
{
    return static_cast<int>(blockIdx.x);
}
TF_DEVICE int blockY()
{
    return static_cast<int>(blockIdx.y);
}
TF_DEVICE int blockZ()
{
    return static_cast<int>(blockIdx.z);
}
TF_DEVICE int gridX()
{
    return static_cast<int>(gridDim.x);
}
TF_DEVICE void syncBlock()
{
    __syncthreads();
}
TF_DEVICE char* sharedMemory()
{
    extern __shared__ uint4 dynamicShared[];
    return reinterpret_cast<char*>(dynamicShared);
}
template <typename V>
TF_DEVICE V shuffleXor(V value, int mask)
{
    return __shfl_xor_sync(0xffffffffU, value, mask);
}
//! Within two units in the last place; results below 2^-126 become zero.
TF_DEVICE float exponential2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
TF_DEVICE uint32_t sharedAddress(void const* pointer)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

//! Copies `valid` (0 to 16) bytes asynchronously and zeroes the rest of the sixteen.
TF_DEVICE void copyAsync16(void* target, void const* source, int valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(sharedAddress(target)), "l"(source), "r"(valid)
                 : "memory");
}
TF_DEVICE void commitCopies()
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int PENDING>
TF_DEVICE void waitCopies()
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
}

//! Four 8 x 8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8.
TF_DEVICE void loadMatrices(uint32_t (&r)[4], void const* row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(sharedAddress(row))
                 : "memory");
}
TF_DEVICE void loadMatricesTransposed(uint32_t (&r)[4], void const* row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(sharedAddress(row))
                 : "memory");
}

template <typename T>
TF_DEVICE void multiplyAdd(float (&d)[4], uint32_t const (&a)[4], uint32_t b0, uint32_t b1);

template <>
TF_DEVICE void multiplyAdd<Bf16>(float (&d)[4], uint32_t const (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
TF_DEVICE void multiplyAdd<Fp16>(float (&d)[4], uint32_t const (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#else // the host shim

TF_DEVICE int threadIndex()
{
    return shim::machine().current->thread;
}
TF_DEVICE int blockThreads()
{
    return shim::machine().threads;
}
TF_DEVICE int blockX()
{
    return static_cast<int>(shim::machine().blockIndex.x);
}
TF_DEVICE int blockY()
{
    return static_cast<int>(shim::machine().blockIndex.y);
}
TF_DEVICE int blockZ()
{
    return static_cast<int>(shim::machine().blockIndex.z);
}
TF_DEVICE int gridX()
{
    return static_cast<int>(shim::machine().grid.x);
}
TF_DEVICE void syncBlock()
{
    shim::blockBarrier();
}
TF_DEVICE char* sharedMemory()
{
    return shim::machine().sharedBase;
}
template <typename V>
TF_DEVICE V shuffleXor(V value, int mask)
{
    struct Argument
    {
        V in;
        V out;
        int source;
    } mine{value, value, shim::lane() ^ mask};
    shim::collective(mine,
        [](Argument** lanes)
        {
            for (int lane = 0; lane < kWARP_SIZE; ++lane)
            {
                lanes[lane]->out = lanes[lanes[lane]->source]->in;
            }
        });
    return mine.out;
}
TF_DEVICE float exponential2(float x)
{
    return exp2f(x);
}
TF_DEVICE void copyAsync16(void* target, void const* source, int valid)
{
    shim::startCopy(shim::Copy{target, source, static_cast<uint32_t>(valid), static_cast<uint32_t>(16 - valid)});
}
TF_DEVICE void commitCopies()
{
    shim::Fiber& fiber = *shim::machine().current;
    fiber.groups.push_back(std::move(fiber.open));
    fiber.open.clear();
}
template <int PENDING>
TF_DEVICE void waitCopies()
{
    shim::waitForCopies(PENDING);
}

struct MatrixArgument
{
    uint16_t const* row;
    uint32_t* r;
};

TF_DEVICE void loadMatrices(uint32_t (&r)[4], void const* row)
{
    MatrixArgument mine{static_cast<uint16_t const*>(row), r};
    shim::collective(mine,
        [](MatrixArgument** lanes)
        {
            for (int lane = 0; lane < kWARP_SIZE; ++lane)
            {
                for (int i = 0; i < 4; ++i)
                {
                    __builtin_memcpy(lanes[lane]->r + i, lanes[i * 8 + lane / 4]->row + lane % 4 * 2, 4);
                }
            }
        });
}
TF_DEVICE void loadMatricesTransposed(uint32_t (&r)[4], void const* row)
{
    MatrixArgument mine{static_cast<uint16_t const*>(row), r};
    shim::collective(mine,
        [](MatrixArgument** lanes)
        {
            for (int lane = 0; lane < kWARP_SIZE; ++lane)
            {
                for (int i = 0; i < 4; ++i)
                {
                    uint32_t const low = lanes[i * 8 + lane % 4 * 2]->row[lane / 4];
                    uint32_t const high = lanes[i * 8 + lane % 4 * 2 + 1]->row[lane / 4];
                    lanes[lane]->r[i] = low | high << 16;
                }
            }
        });
}

#endif

//! Sum, or maximum, over `WIDTH` neighbouring lanes; every lane gets it.
template <int WIDTH>
TF_DEVICE float laneSum(float x)
{
#pragma unroll
    for (int mask = WIDTH / 2; mask > 0; mask /= 2)
    {
        x += shuffleXor(x, mask);
    }
    return x;
}
template <int WIDTH>
TF_DEVICE float laneMax(float x)
{
#pragma unroll
    for (int mask = WIDTH / 2; mask > 0; mask /= 2)
    {
        x = fmaxf(x, shuffleXor(x, mask));
    }
    return x;
}

} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_PLATFORM_CUH
