"""trtforge: checkpoint in, verified TensorRT-LLM style deployment out."""

__version__ = "0.1.0"
