"""The ``trtllm-llmapi`` target: no engine; the LLM API of TensorRT-LLM loads the quantized checkpoint."""
