"""The ``torch`` target: the plugin graph packed for the torch executor, on a CPU or a CUDA device.

``target`` builds the engine, ``kernels`` is the table that says which kernel runs a linear, ``info`` what a machine
executes of an engine.
"""
