//! \file isa_avx2.cpp
//! \brief AVX2 + FMA + F16C: eight lanes.
#define TRTFORGE_ISA_NAMESPACE isa_avx2
#define TRTFORGE_ISA_NAME "avx2"
#define TRTFORGE_ISA_TABLE avx2Kernels

#include "trtforge/isa_unit.hpp"
