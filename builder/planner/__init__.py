"""The planner: memory, capacity, parallelism, speed and cost of a deployment, by arithmetic, before a GPU is rented.

Policy: every figure is a sum whose terms and formulas are shown; what cannot be computed exactly is a
range with its source. Nothing here imports torch or reads a tensor's data: shapes come from safetensors
headers or from ``config.json``. Bytes are bytes, bandwidths bytes a second, times seconds; GB is 10^9 and
GiB 2^30.
"""
