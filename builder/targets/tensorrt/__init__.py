"""The ``tensorrt`` target: a TensorRT plan of the plugin graph, compiled on the GPU that serves it.

``target`` is the front; ``lowering`` writes the graph as TensorRT's parser takes it, ``profiles`` the shapes,
``session`` the calls of the builder, ``worker`` and ``process`` run them in a process of their own. What differs
between TensorRT's versions is in ``versions`` alone.
"""
