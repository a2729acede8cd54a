//! \file runtime.hpp
//! \brief What the entry points share: error reporting, the chosen instruction set, threads and scratch memory.
#ifndef TRTFORGE_HOST_RUNTIME_HPP
#define TRTFORGE_HOST_RUNTIME_HPP

#include "trtforge/types.hpp"
#include "trtforge/validate.hpp"

#include <cstdint>
#include <exception>
#include <new>

#include <omp.h>

namespace trtforge
{

//! Kernels of the chosen instruction set; throws Refusal when TRTFORGE_HOST_ISA asks for one that cannot run.
KernelTable const& kernels();

void setLastError(char const* message) noexcept;

//! Threads for a call whose work is worth more than one (1 inside somebody else's parallel region).
int threadsFor(int64_t work, int64_t threshold);

//! 64-byte aligned memory of the calling thread, reused between calls; throws std::bad_alloc.
void* threadMemory(int slot, size_t bytes);

//! Runs body; exceptions become codes and a message for trtforge_last_error().
template <typename Body>
int guarded(Body&& body) noexcept
{
    try
    {
        body();
        return TRTFORGE_OK;
    }
    catch (Refusal const& refusal)
    {
        setLastError(refusal.message.c_str());
        return refusal.code;
    }
    catch (std::bad_alloc const&)
    {
        setLastError("out of memory for scratch space");
        return TRTFORGE_OUT_OF_MEMORY;
    }
    catch (std::exception const& error)
    {
        setLastError(error.what());
        return TRTFORGE_OUT_OF_MEMORY;
    }
}

//! Calls body(begin, end) over [0, count), cut into one piece a thread.
template <typename Body>
void parallelRanges(int64_t count, int threads, Body&& body)
{
    if (threads <= 1 || count <= 1)
    {
        body(int64_t{0}, count);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        int64_t const n = omp_get_num_threads();
        int64_t const i = omp_get_thread_num();
        int64_t const begin = count * i / n;
        int64_t const end = count * (i + 1) / n;
        if (begin < end)
        {
            body(begin, end);
        }
    }
}

} // namespace trtforge

#endif // TRTFORGE_HOST_RUNTIME_HPP
