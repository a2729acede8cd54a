"""The ``trtllm-engine`` target: TensorRT-LLM's checkpoint, and its engine where this machine can compile it."""
