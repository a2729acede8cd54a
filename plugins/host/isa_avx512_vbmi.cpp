//! \file isa_avx512_vbmi.cpp
//! \brief AVX-512 F/BW/DQ/VL with VBMI (Ice Lake, Zen 4 and later): FP8 pools are read through byte tables.
#define TRTFORGE_ISA_NAMESPACE isa_avx512_vbmi
#define TRTFORGE_ISA_NAME "avx512_vbmi"
#define TRTFORGE_ISA_TABLE avx512VbmiKernels

#include "trtforge/isa_unit.hpp"
