"""Code that goes into a repository of the ``llmapi`` layout; see :mod:`triton_repo.layouts.shipping`."""
