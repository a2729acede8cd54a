"""Artifacts and engine directories of TensorRT-LLM in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from builder.targets.description import Description, Rows, Table, limit_rows
from trtforge.ground.units import format_size


def describe(document: dict[str, Any]) -> Description:
    """An artifact for TensorRT-LLM: asked, compiled or not, and the differences; broken when there are any."""
    built = document.get("engine")
    state = "compiled" if document["compiled"] else "compiled since" if built else "NOT compiled"
    parallel = document["parallel"]
    rows = [
        ["TensorRT-LLM", f"{document['tensorrt_llm']} (stack {document['stack']})"],
        ["container", str(document["container"])],
        ["ranks", f"tp {parallel['tp']} x pp {parallel['pp']} x ep {parallel['ep']}"],
        ["KV cache", f"{document['kv_cache']['format']}, blocks of {document['kv_cache']['block_size']} tokens"],
        *limit_rows(document),
    ]
    again = (document.get("conversion") or {}).get("requantized")
    if again:
        rows.append(["weights that the conversion rounded again", f"{again['weights']:,}"])
    if not document["compiled"] and not built:
        rows.append(["not compiled", str(document["not_compiled"])])
        rows += [["compile it with", name] for name in document.get("scripts", ())]
    if "serve_command" in document:
        rows.append(["serve it with", document["serve_command"]])
    findings = document.get("findings", [])
    parts = [Table("Engine", ["what", "value"], _engine_rows(built))] if built else []
    return Description(
        f"{document['name']}: target {document['target']}, {document['quant_format']}, {state}",
        Table("Asked", ["what", "value"], rows),
        (*parts, *_faults("Differences", findings)),
        verdicts=(f"{len(findings)} differences from what was asked" if built else state,),
        broken=bool(findings),
    )


def describe_foreign(document: dict[str, Any], name: str) -> Description:
    """What an engine directory that trtllm-build wrote by itself records; broken when anything in it is."""
    findings, ranks = document["findings"], document["ranks"]
    broken = f", {len(findings)} fault{'s' if len(findings) > 1 else ''}" if findings else ""
    return Description(
        f"{name}: an engine of TensorRT-LLM {document['version']}",
        Table("Engine", ["what", "value"], _engine_rows(document)),
        (
            Table("Ranks", ["rank", "plan"], [[rank, format_size(size)] for rank, size in ranks.items()]),
            *_faults("Faults", findings),
        ),
        verdicts=(f"TensorRT-LLM {document['version']}, {len(ranks)} ranks{broken}",),
        broken=bool(findings),
    )


def _faults(title: str, findings: Sequence[Mapping[str, Any]]) -> tuple[Table, ...]:
    rows = [[item["code"], item["message"]] for item in findings]
    return (Table(title, ["code", "finding"], rows),) if rows else ()


def _engine_rows(document: Mapping[str, Any]) -> list[list[str]]:
    quantization = document["quantization"] or {}
    mapping = document["mapping"]
    return [
        ["architecture", str(document["architecture"])],
        ["dtype", str(document["dtype"])],
        ["quantization", f"{quantization.get('quant_algo')}, KV cache {quantization.get('kv_cache_quant_algo')}"],
        ["ranks", f"tp {mapping.get('tp_size', 1)} x pp {mapping.get('pp_size', 1)}"],
        *([key, str(value)] for key, value in document["settings"].items()),
    ]


def report_rows(engine: Mapping[str, Any]) -> Rows:
    """What is known of an artifact; whether it was compiled stands first."""
    parallel = engine["parallel"]
    return (
        ("compiled", "yes" if engine["compiled"] else f"NO: {engine['not_compiled']}"),
        ("TensorRT-LLM", f"{engine['tensorrt_llm']} (stack {engine['stack']})"),
        ("ranks", f"tp {parallel['tp']} x pp {parallel['pp']}"),
        ("KV cache", f"{engine['kv_cache']['format']}, blocks of {engine['kv_cache']['block_size']} tokens"),
    )
