//! \file isa_avx512_bf16.cpp
//! \brief AVX-512 F/BW/DQ/VL, VBMI and BF16 (Zen 4, Sapphire Rapids and later): INT4 linears multiply bfloat16 pairs.
#define TRTFORGE_ISA_NAMESPACE isa_avx512_bf16
#define TRTFORGE_ISA_NAME "avx512_bf16"
#define TRTFORGE_ISA_TABLE avx512Bf16Kernels

#include "trtforge/isa_unit.hpp"
