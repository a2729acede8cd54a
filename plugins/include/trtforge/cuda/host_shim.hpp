//! \file host_shim.hpp
//! \brief Runs CUDA kernels on a CPU, for tests: every thread of a block is a fiber, blocks run one after another.
//!
//! What it models: block and warp barriers, warp collectives, dynamic shared memory (filled with NaN patterns, guarded
//! at its end), asynchronous copies that arrive at once or only when they are waited for, and either order of warps
//! and threads, each warp running until it meets a barrier. Behind every barrier the order begins anew, whoever came
//! last, so that of any two threads each is the first one in one of the two orders. A barrier that some threads never
//! reach is reported, not waited for. What it does not model: races between blocks, memory ordering, timing and tensor
//! cores' own rounding.
//!
//! Fibers are created with ucontext and switched with _setjmp, which makes no system call.
#ifndef TRTFORGE_CUDA_HOST_SHIM_HPP
#define TRTFORGE_CUDA_HOST_SHIM_HPP

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <ucontext.h>

namespace trtforge
{
namespace cuda
{
namespace shim
{

struct Dim3
{
    uint32_t x{1};
    uint32_t y{1};
    uint32_t z{1};
};

constexpr int kWARP = 32;
constexpr int kMAX_THREADS = 512;
constexpr size_t kSTACK = 96 * 1024;
constexpr size_t kGUARD = 256;

enum class State : uint8_t
{
    kREADY,
    kWAITS_FOR_WARP,
    kWAITS_FOR_BLOCK,
    kDONE
};

struct Copy
{
    void* target;
    void const* source;
    uint32_t bytes;
    uint32_t zeros;
};

struct Fiber
{
    ucontext_t start{};
    jmp_buf resume{};
    std::unique_ptr<char[]> stack;
    bool started{false};
    State state{State::kDONE};
    int thread{0};
    void* argument{nullptr};               //!< of the warp collective that this fiber waits in
    std::vector<std::vector<Copy>> groups; //!< committed asynchronous copies, oldest first
    std::vector<Copy> open;
};

using Body = void (*)(void const*);

struct Machine
{
    std::vector<std::unique_ptr<Fiber>> fibers;
    ucontext_t scheduler{};
    jmp_buf back{};
    Fiber* current{nullptr};
    Body body{nullptr};
    void const* closure{nullptr};
    Dim3 grid;
    Dim3 block;
    Dim3 blockIndex;
    int threads{0};
    int atBlockBarrier{0};
    int barriers{0}; //!< block barriers that this block has passed
    int atWarpBarrier[kMAX_THREADS / kWARP]{};
    std::vector<char> shared;
    char* sharedBase{nullptr};
    size_t sharedBytes{0};
    bool descending{false}; //!< order of threads between barriers; a missing barrier shows as a difference
    std::string launches;   //!< "x,y,z,threads;" of each, until somebody asks
};

inline Machine& machine()
{
    static Machine theMachine;
    return theMachine;
}

[[noreturn]] inline void fail(char const* what)
{
    Machine& m = machine();
    std::fprintf(stderr, "host shim: %s in block (%u, %u, %u)\n", what, m.blockIndex.x, m.blockIndex.y, m.blockIndex.z);
    std::abort();
}

//! Back to the scheduler; returns when this fiber is resumed.
__attribute__((noinline)) inline void suspend()
{
    Machine& m = machine();
    if (_setjmp(m.current->resume) == 0)
    {
        _longjmp(m.back, 1);
    }
}

inline void fiberMain()
{
    for (;;)
    {
        Machine& m = machine();
        m.body(m.closure);
        machine().current->state = State::kDONE;
        suspend();
    }
}

__attribute__((noinline)) inline void resume(Fiber* fiber)
{
    Machine& m = machine();
    m.current = fiber;
    if (_setjmp(m.back) == 0)
    {
        if (fiber->started)
        {
            _longjmp(fiber->resume, 1);
        }
        fiber->started = true;
        setcontext(&fiber->start);
    }
}

inline Fiber& newFiber(int thread)
{
    Machine& m = machine();
    m.fibers.push_back(std::make_unique<Fiber>());
    Fiber& fiber = *m.fibers.back();
    fiber.stack.reset(new char[kSTACK]);
    fiber.thread = thread;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = kSTACK;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, reinterpret_cast<void (*)()>(&fiberMain), 0);
    return fiber;
}

//! Runs a warp as far as it gets alone, so that warps are as far apart as barriers allow; whether anything ran.
inline bool runWarp(int warp)
{
    Machine& m = machine();
    int const passed = m.barriers;
    bool any = false;
    for (bool moved = true; moved && m.barriers == passed;)
    {
        moved = false;
        for (int lane = 0; lane < kWARP && m.barriers == passed; ++lane)
        {
            int const thread = warp * kWARP + (m.descending ? kWARP - 1 - lane : lane);
            Fiber* fiber = m.fibers[static_cast<size_t>(thread)].get();
            if (fiber->state == State::kREADY)
            {
                resume(fiber);
                moved = true;
            }
        }
        any = any || moved;
    }
    return any;
}

inline void runBlock()
{
    Machine& m = machine();
    std::memset(m.shared.data(), 0xff, m.shared.size());
    m.atBlockBarrier = 0;
    std::memset(m.atWarpBarrier, 0, sizeof(m.atWarpBarrier));
    for (int i = 0; i < m.threads; ++i)
    {
        m.fibers[static_cast<size_t>(i)]->state = State::kREADY;
    }
    int running = m.threads;
    while (running > 0)
    {
        bool progress = false;
        int const passed = m.barriers;
        for (int warp = 0; warp < m.threads / kWARP && m.barriers == passed; ++warp)
        {
            progress = runWarp(m.descending ? m.threads / kWARP - 1 - warp : warp) || progress;
        }
        running = 0;
        for (int i = 0; i < m.threads; ++i)
        {
            running += m.fibers[static_cast<size_t>(i)]->state != State::kDONE ? 1 : 0;
        }
        if (running > 0 && !progress)
        {
            fail("some threads wait at a barrier or in a warp collective that the others never reach");
        }
    }
    for (size_t i = 0; i < kGUARD; ++i)
    {
        if (static_cast<unsigned char>(m.sharedBase[m.sharedBytes + i]) != 0xff)
        {
            fail("a write past the end of shared memory");
        }
    }
}

template <typename Function>
void launch(Dim3 grid, int threads, size_t sharedBytes, Function const& function)
{
    Machine& m = machine();
    if (threads <= 0 || threads > kMAX_THREADS || threads % kWARP != 0)
    {
        fail("block size must be a multiple of 32 up to 512");
    }
    while (static_cast<int>(m.fibers.size()) < threads)
    {
        newFiber(static_cast<int>(m.fibers.size()));
    }
    m.launches += std::to_string(grid.x) + ',' + std::to_string(grid.y) + ',' + std::to_string(grid.z) + ','
        + std::to_string(threads) + ';';
    m.shared.assign(sharedBytes + kGUARD + 128, static_cast<char>(0xff));
    m.sharedBase = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(m.shared.data()) + 127) / 128 * 128);
    m.sharedBytes = sharedBytes;
    m.grid = grid;
    m.block = Dim3{static_cast<uint32_t>(threads), 1, 1};
    m.threads = threads;
    m.closure = &function;
    m.body = [](void const* closure) { (*static_cast<Function const*>(closure))(); };
    for (uint32_t z = 0; z < grid.z; ++z)
    {
        for (uint32_t y = 0; y < grid.y; ++y)
        {
            for (uint32_t x = 0; x < grid.x; ++x)
            {
                m.blockIndex = Dim3{x, y, z};
                runBlock();
            }
        }
    }
}

inline void blockBarrier()
{
    Machine& m = machine();
    m.current->state = State::kWAITS_FOR_BLOCK;
    if (++m.atBlockBarrier == m.threads)
    {
        m.atBlockBarrier = 0;
        ++m.barriers;
        for (int i = 0; i < m.threads; ++i)
        {
            m.fibers[static_cast<size_t>(i)]->state = State::kREADY;
        }
    }
    suspend();
}

//! Whoever arrives last runs compute(arguments of the 32 lanes) while the others wait with their locals alive, and then
//! waits for its own turn.
template <typename Argument, typename Compute>
void collective(Argument& mine, Compute&& compute)
{
    Machine& m = machine();
    int const warp = m.current->thread / kWARP;
    m.current->argument = &mine;
    m.current->state = State::kWAITS_FOR_WARP;
    if (++m.atWarpBarrier[warp] == kWARP)
    {
        m.atWarpBarrier[warp] = 0;
        Argument* lanes[kWARP];
        for (int lane = 0; lane < kWARP; ++lane)
        {
            Fiber& fiber = *m.fibers[static_cast<size_t>(warp * kWARP + lane)];
            lanes[lane] = static_cast<Argument*>(fiber.argument);
            fiber.state = State::kREADY;
        }
        compute(lanes);
    }
    suspend();
}

inline int lane()
{
    return machine().current->thread % kWARP;
}

inline void arrive(Copy const& copy)
{
    std::memcpy(copy.target, copy.source, copy.bytes);
    std::memset(static_cast<char*>(copy.target) + copy.bytes, 0, copy.zeros);
}

//! A copy may arrive at any time until it is waited for: at the last moment, or at once when threads run in falling
//! order.
inline void startCopy(Copy const& copy)
{
    Machine& m = machine();
    if (m.descending)
    {
        arrive(copy);
    }
    else
    {
        m.current->open.push_back(copy);
    }
}

//! Leaves at most `pending` committed groups of this thread under way.
inline void waitForCopies(size_t pending)
{
    auto& groups = machine().current->groups;
    while (groups.size() > pending)
    {
        for (Copy const& copy : groups.front())
        {
            arrive(copy);
        }
        groups.erase(groups.begin());
    }
}

} // namespace shim
} // namespace cuda
} // namespace trtforge

#endif // TRTFORGE_CUDA_HOST_SHIM_HPP
