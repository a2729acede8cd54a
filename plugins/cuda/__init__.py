"""CUDA op library: the kernels of ``plugins/include/trtforge/cuda``, their launchers, build and loaders.

The same sources make two libraries: ``libtrtforge_cuda.so`` (nvcc, for GPUs) and its twin under the host shim (g++,
threads as fibers), which runs the very same kernels on a CPU for tests. Nothing here imports torch until a tensor is
handed over.
"""
