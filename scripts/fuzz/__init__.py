"""Fuzzing: mutated inputs against what reads them. ``python -m scripts.fuzz TARGET --seconds N``; see ``harness``."""
