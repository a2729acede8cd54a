//! \file runtime.cpp
//! \brief The library itself: ABI version, last error, choice of instruction set, threads, scratch memory.
#include "runtime.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <unistd.h>

#ifndef TRTFORGE_SOURCE_HASH
#define TRTFORGE_SOURCE_HASH "unknown"
#endif

namespace trtforge
{
namespace
{

struct Isa
{
    char const* name;
    KernelTable const& (*table)();
    bool (*runs)();
    bool automatic; //!< may be chosen without being asked for
};

bool always()
{
    return true;
}

#if defined(TRTFORGE_HAVE_AVX2)
bool runsAvx2()
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
#endif

#if defined(TRTFORGE_HAVE_AVX512)
bool runsAvx512()
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
        && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma");
}
#endif

#if defined(TRTFORGE_HAVE_AVX512_VBMI)
bool runsAvx512Vbmi()
{
    return runsAvx512() && __builtin_cpu_supports("avx512vbmi");
}
#endif

#if defined(TRTFORGE_HAVE_AVX512_BF16)
bool runsAvx512Bf16()
{
    return runsAvx512Vbmi() && __builtin_cpu_supports("avx512bf16");
}
#endif

//! Best first.
constexpr Isa kISAS[] = {
#if defined(TRTFORGE_HAVE_AVX512_BF16)
    {"avx512_bf16", &avx512Bf16Kernels, &runsAvx512Bf16, true},
#endif
#if defined(TRTFORGE_HAVE_AVX512_VBMI)
    {"avx512_vbmi", &avx512VbmiKernels, &runsAvx512Vbmi, true},
#endif
#if defined(TRTFORGE_HAVE_AVX512)
    {"avx512", &avx512Kernels, &runsAvx512, true},
#endif
#if defined(TRTFORGE_HAVE_AVX2)
    {"avx2", &avx2Kernels, &runsAvx2, true},
#endif
    {"plain", &plainKernels, &always, true},
#if defined(TRTFORGE_HAVE_WIDE)
    {"wide", &wideKernels, &always, false},
#endif
};

std::string names(bool onlyRunning)
{
    std::string list;
    for (Isa const& isa : kISAS)
    {
        if (!onlyRunning || isa.runs())
        {
            list += (list.empty() ? "" : ", ") + std::string(isa.name);
        }
    }
    return list;
}

KernelTable const& choose(char const* asked)
{
    for (Isa const& isa : kISAS)
    {
        if (asked == nullptr || *asked == '\0')
        {
            if (isa.automatic && isa.runs())
            {
                return isa.table();
            }
        }
        else if (std::strcmp(asked, isa.name) == 0)
        {
            require(isa.runs(), TRTFORGE_BAD_ISA, "this CPU cannot run instruction set '%s'; it can run: %s", asked,
                names(true).c_str());
            return isa.table();
        }
    }
    require(false, TRTFORGE_BAD_ISA, "instruction set '%s' is not in this library; it has: %s",
        asked == nullptr ? "" : asked, names(false).c_str());
    return plainKernels();
}

std::atomic<KernelTable const*> gKernels{nullptr};
std::atomic<int> gThreads{0};

thread_local std::string tLastError;

//! Grows only; freed with the thread.
struct Memory
{
    std::unique_ptr<void, decltype(&std::free)> data{nullptr, &std::free};
    size_t bytes{0};
};

thread_local Memory tMemory[2];

std::string quoted(std::string const& list)
{
    std::string out = "[";
    size_t from = 0;
    while (from < list.size())
    {
        size_t const comma = list.find(", ", from);
        size_t const to = comma == std::string::npos ? list.size() : comma;
        out += (from == 0 ? "\"" : ", \"") + list.substr(from, to - from) + "\"";
        from = comma == std::string::npos ? to : comma + 2;
    }
    return out + "]";
}

} // namespace

KernelTable const& kernels()
{
    KernelTable const* table = gKernels.load(std::memory_order_acquire);
    if (table == nullptr)
    {
        table = &choose(std::getenv("TRTFORGE_HOST_ISA"));
        gKernels.store(table, std::memory_order_release);
    }
    return *table;
}

void setLastError(char const* message) noexcept
{
    try
    {
        tLastError = message;
    }
    catch (...)
    {
        tLastError.clear();
    }
}

int threadsFor(int64_t work, int64_t threshold)
{
    if (work < threshold || omp_in_parallel() != 0)
    {
        return 1;
    }
    int const fixed = gThreads.load(std::memory_order_relaxed);
    return fixed > 0 ? fixed : omp_get_max_threads();
}

void* threadMemory(int slot, size_t bytes)
{
    Memory& memory = tMemory[slot];
    if (memory.bytes < bytes)
    {
        size_t const rounded = (bytes + 4095) / 4096 * 4096;
        memory.data.reset();
        memory.bytes = 0;
        memory.data.reset(std::aligned_alloc(64, rounded));
        if (memory.data == nullptr)
        {
            throw std::bad_alloc();
        }
        memory.bytes = rounded;
    }
    return memory.data.get();
}

} // namespace trtforge

extern "C" int trtforge_host_abi(void)
{
    return TRTFORGE_HOST_ABI;
}

extern "C" char const* trtforge_last_error(void)
{
    return trtforge::tLastError.c_str();
}

extern "C" char const* trtforge_host_isa(void)
{
    char const* name = nullptr;
    trtforge::guarded([&] { name = trtforge::kernels().name; });
    return name;
}

extern "C" int trtforge_host_select_isa(char const* name)
{
    return trtforge::guarded(
        [&]
        {
            bool const given = name != nullptr && *name != '\0';
            trtforge::gKernels.store(&trtforge::choose(given ? name : std::getenv("TRTFORGE_HOST_ISA")));
        });
}

extern "C" int trtforge_host_set_threads(int threads)
{
    return trtforge::guarded(
        [&]
        {
            trtforge::require(threads >= 0 && threads <= 1024, TRTFORGE_BAD_VALUE,
                "threads must be 0 (follow OpenMP) to 1024, got %d", threads);
            trtforge::gThreads.store(threads);
        });
}

extern "C" int trtforge_host_leave_with_parent(int parent, int milliseconds)
{
    return trtforge::guarded(
        [&]
        {
            trtforge::require(parent > 0 && milliseconds > 0 && milliseconds < 1000, TRTFORGE_BAD_VALUE,
                "a process and 1 to 999 milliseconds are needed, got %d and %d", parent, milliseconds);
            while (getppid() == parent)
            {
                usleep(static_cast<useconds_t>(milliseconds) * 1000);
            }
            _exit(1);
        });
}

extern "C" char const* trtforge_host_info(void)
{
    thread_local std::string text;
    trtforge::guarded(
        [&]
        {
            text = "{\"abi\": " + std::to_string(TRTFORGE_HOST_ABI) + ", \"isa\": \""
                + trtforge::kernels().name + "\", \"isas_compiled\": " + trtforge::quoted(trtforge::names(false))
                + ", \"isas_available\": " + trtforge::quoted(trtforge::names(true)) + ", \"compiler\": \"g++ "
                + __VERSION__ + "\", \"openmp\": " + std::to_string(_OPENMP) + ", \"threads\": "
                + std::to_string(trtforge::threadsFor(1, 0)) + ", \"source_hash\": \"" TRTFORGE_SOURCE_HASH "\"}";
        });
    return text.c_str();
}
