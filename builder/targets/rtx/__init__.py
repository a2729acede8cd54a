"""The ``tensorrt-rtx`` target: RTX engines, compiled on a CPU from the plugin-free graph.

An RTX engine loads in TensorRT for RTX of the same release, on the architecture that it was built for. It never
loads in TensorRT or TensorRT-LLM.
"""
