"""Code that goes into a repository of the ``inflight_batcher_llm`` layout; see :mod:`triton_repo.layouts.shipping`."""
