//! \file isa_avx512.cpp
//! \brief AVX-512 F/BW/DQ/VL: sixteen lanes.
#define TRTFORGE_ISA_NAMESPACE isa_avx512
#define TRTFORGE_ISA_NAME "avx512"
#define TRTFORGE_ISA_TABLE avx512Kernels

#include "trtforge/isa_unit.hpp"
