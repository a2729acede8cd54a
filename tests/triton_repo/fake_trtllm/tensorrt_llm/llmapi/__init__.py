"""The part of TensorRT-LLM's llmapi that a guided request needs."""

from dataclasses import dataclass


@dataclass
class GuidedDecodingParams:
    json: object = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None
