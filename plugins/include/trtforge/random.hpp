//! \file random.hpp
//! \brief The counter-based random numbers of EagleAccept: Philox4x32-10, the same bits in every implementation.
//!
//! Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11).
#ifndef TRTFORGE_RANDOM_HPP
#define TRTFORGE_RANDOM_HPP

#include "trtforge/both.hpp"

#include <cstdint>

namespace trtforge
{

struct Philox
{
    uint32_t word[4];
};

//! Ten rounds over counter (c0, c1, c2, c3) with a 64-bit key.
TF_BOTH Philox philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    uint32_t k0 = static_cast<uint32_t>(key);
    uint32_t k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round)
    {
        uint64_t const p0 = static_cast<uint64_t>(0xD2511F53U) * c0;
        uint64_t const p1 = static_cast<uint64_t>(0xCD9E8D57U) * c2;
        uint32_t const n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
        uint32_t const n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
        c1 = static_cast<uint32_t>(p1);
        c3 = static_cast<uint32_t>(p0);
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    return Philox{{c0, c1, c2, c3}};
}

//! Strictly between 0 and 1, exact in float32: the upper 23 bits and a half.
TF_BOTH float uniformOf(uint32_t word)
{
    return (static_cast<float>(word >> 9) + 0.5F) * 1.1920928955078125e-07F;
}

//! Numbers of tokens 4 * block ... 4 * block + 3 at a position of a sequence.
TF_BOTH Philox tokenNoise(int64_t seed, int32_t position, int32_t block)
{
    return philox(static_cast<uint64_t>(seed), static_cast<uint32_t>(block), static_cast<uint32_t>(position), 0U,
        0x54464741U); // "TFGA"
}

} // namespace trtforge

#endif // TRTFORGE_RANDOM_HPP
