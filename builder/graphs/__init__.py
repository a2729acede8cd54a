"""Model graphs: ONNX written from config.json and safetensors headers, one module an architecture family."""
