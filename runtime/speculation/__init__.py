"""Speculative decoding in the native runtime."""
