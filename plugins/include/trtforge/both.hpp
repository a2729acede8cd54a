//! \file both.hpp
//! \brief The mark of a function that runs on the host and on a GPU.
#ifndef TRTFORGE_BOTH_HPP
#define TRTFORGE_BOTH_HPP

#if defined(__CUDACC__)
#define TF_BOTH __host__ __device__ __forceinline__
#else
#define TF_BOTH static inline __attribute__((always_inline))
#endif

#endif // TRTFORGE_BOTH_HPP
