"""Advice on quantization: which format, KV cache and group a recipe should have on a GPU, and why.

Policy: every figure is the planner's or a row of a table; this package only decides. What memory there is decides what
fits and nothing else, so more memory never brings fewer bits of weights. What preflight refuses is not advised.
"""

from builder.planner.advice.rule import Advice, advise

__all__ = ["Advice", "advise"]
