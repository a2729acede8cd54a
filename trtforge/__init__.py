"""trtforge: checkpoint in, verified TensorRT-LLM style deployment out.

Importing it makes sure that ``import builder``, ``import runtime`` … find its own packages and nobody else's.
"""

from trtforge.ground.own_packages import claim

__version__ = "0.1.0"

claim()
