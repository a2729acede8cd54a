"""OpenAI's API before a Triton server: an ASGI application that asks the served model over gRPC.

Policy: what a client sends is honoured or refused by name. The application knows nothing of an engine; it reads the
repository that Triton serves for the model's name, tokenizer, limits and tensors, and asks Triton for everything else.
"""
