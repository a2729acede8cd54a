"""Op library: written contracts, host kernels, their references and thin Python loaders.

Importing this package is cheap: no torch, no shared library. ``plugins.host.load()`` opens the host library.
"""
