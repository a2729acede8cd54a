"""TensorRT-LLM: its checkpoint, its builder's command, its engine directories, and the LLM API's arguments.

Policy: the checkpoint that TensorRT-LLM loads is made here, on a processor, from the quantized Hugging Face
checkpoint, with the stored bits kept wherever the format allows; a value that had to be rounded again is
counted and reported. What only a GPU can do (compiling the engine) is done in place when TensorRT-LLM is
installed, and otherwise written down as a script; ``engine.json`` says which of the two happened.
"""
