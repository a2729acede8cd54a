"""Speed by roofline over the model's ops: step times, time to the first token, tokens a second, and the knee.

Policy: one op list feeds every figure, taken from the written graph or, where there is none, from the model's
sizes (a test holds both to be equal). A time is ``max(flops / peak, bytes / bandwidth)`` over efficiencies that
kernels reach, plus what a launch costs; where nothing was measured on the machine at hand, figures are ranges.
"""
