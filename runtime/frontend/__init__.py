"""What Triton's clients say and what they are told: the tensors of TensorRT-LLM's ``ensemble`` and ``tensorrt_llm``."""
