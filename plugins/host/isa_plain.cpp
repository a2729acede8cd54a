//! \file isa_plain.cpp
//! \brief Baseline x86-64 (SSE2), through GCC vector extensions of four lanes.
#define TRTFORGE_ISA_NAMESPACE isa_plain
#define TRTFORGE_ISA_NAME "plain"
#define TRTFORGE_ISA_TABLE plainKernels
#define TRTFORGE_GENERIC_LANES 4

#include "trtforge/isa_unit.hpp"
