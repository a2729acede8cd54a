"""Triton model repositories: emitted as protobuf messages, checked as a unit."""
