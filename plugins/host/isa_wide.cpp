//! \file isa_wide.cpp
//! \brief Sixteen emulated lanes: lets tests run the sixteen-lane code paths on any CPU. Never chosen by itself.
#define TRTFORGE_ISA_NAMESPACE isa_wide
#define TRTFORGE_ISA_NAME "wide"
#define TRTFORGE_ISA_TABLE wideKernels
#define TRTFORGE_GENERIC_LANES 16

#include "trtforge/isa_unit.hpp"
