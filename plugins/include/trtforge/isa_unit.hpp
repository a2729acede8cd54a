//! \file isa_unit.hpp
//! \brief The body of one instruction set's translation unit: includes every kernel and fills a KernelTable.
//!
//! The including file defines TRTFORGE_ISA_NAMESPACE, TRTFORGE_ISA_NAME and TRTFORGE_ISA_TABLE.
#ifndef TRTFORGE_ISA_UNIT_HPP
#define TRTFORGE_ISA_UNIT_HPP

#include "trtforge/attention_kernels.hpp"
#include "trtforge/elementwise_kernels.hpp"
#include "trtforge/int4_kernels.hpp"

namespace trtforge
{

KernelTable const& TRTFORGE_ISA_TABLE()
{
    using namespace TRTFORGE_ISA_NAMESPACE;
    static constexpr KernelTable kTABLE{TRTFORGE_ISA_NAME, kLANES, &attentionScratch, &partialFloats, &attentionWrite,
        &attentionTask, &attentionMerge, &rmsNorm, &rope, &siluMul, &fp8FakeQuant, &nvfp4FakeQuant, &embedding,
        &argmaxLogsumexp, kINT4_PAIRS, &int4Scratch, &int4Widen, &int4Linear};
    return kTABLE;
}

} // namespace trtforge

#endif // TRTFORGE_ISA_UNIT_HPP
