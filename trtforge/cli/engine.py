"""``trtforge engine``: engine directories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.cli import common
from trtforge.cli.engine_drafts import measured_policy, recorded_policy, show_policy, show_speculation

if TYPE_CHECKING:
    from trtforge.ground.console import Console

app = typer.Typer(help="Look into engine directories.", no_args_is_help=True, rich_markup_mode=None)


@app.command("info")
@common.forge_command
def info(
    console: Console,
    engine: Annotated[
        Path, typer.Argument(metavar="ENGINE_DIR", help="An engine directory, or a bundle.", show_default=False)
    ],
    capability: Annotated[
        str | None,
        typer.Option(
            help="Answer for this processor level (avx2, avx512 …) instead of this machine.", show_default=False
        ),
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="One row for every linear.")] = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Load the engine, measure what drafts cost here, and say which lengths pay."),
    ] = False,
) -> None:
    """Say for every linear what is stored, what is executed, and whether natively or emulated.

    For TensorRT-LLM: what was asked, whether it was compiled, and where a compiled engine differs. A folder that
    trtllm-build wrote by itself is read too.
    """
    from builder.targets import engine_info
    from builder.targets.trtllm.readback import compare_engine, is_trtllm_engine, read_trtllm_engine
    from trtforge.recipe.units import format_size

    folder = engine / "engine" if (engine / "engine" / "engine.json").is_file() else engine
    if not (folder / "engine.json").is_file() and is_trtllm_engine(folder):
        compiled = read_trtllm_engine(folder)
        findings = [finding.to_json() for finding in compare_engine(compiled, {})]
        show_trtllm_engine(console, {**compiled.to_json(), "findings": findings}, folder.resolve().name)
        return
    document = engine_info(folder, capability)
    policy = measured_policy(folder) if measure else recorded_policy(engine)
    if policy is not None:
        document["policy"] = policy
    if document["target"] == "tensorrt-rtx":
        show_rtx(console, document)
        return
    if document["target"] == "tensorrt":
        show_tensorrt(console, document)
        return
    if "linears" not in document:
        show_trtllm(console, document)
        return
    console.result(document)
    limits, cache = document["limits"], document["kv_cache"]
    console.heading(
        f"{document['name']}: target {document['target']}, {document['quant_format']}, on {document['machine']}"
    )
    console.table(
        "Engine",
        ["what", "value"],
        [
            *([name, value] for name, value in limits.items()),
            [
                "KV pool",
                f"{cache['num_blocks']} blocks of {cache['block_size']} tokens, {cache['format']}, "
                f"{format_size(cache['num_blocks'] * cache['bytes_per_block'])}",
            ],
            *(
                [f"memory: {name}", format_size(value)]
                for name, value in document.get("memory_plan", {}).items()
                if isinstance(value, int) and name.endswith("bytes")
            ),
        ],
    )
    show_speculation(console, document)
    show_policy(console, policy)
    console.table(
        "Linears by execution",
        ["stored", "executed", "kernel", "", "stored weights", "linears", "weights"],
        [
            [
                row["stored"],
                row["executed"],
                row["kernel"],
                "native" if row["native"] else "emulated",
                f"rounded {row['rounds']}" if row["rounds"] else "kept",
                row["linears"],
                f"{row['weights']:,}",
            ]
            for row in document["execution"]
        ],
    )
    if each:
        console.table(
            "Linears",
            ["name", "shape", "stored", "executed", "kernel", ""],
            [
                [
                    row["name"],
                    "x".join(map(str, row["shape"])),
                    row["stored"],
                    row["executed"],
                    row["kernel"],
                    "native" if row["native"] else "emulated",
                ]
                for row in document["linears"]
            ],
        )
    for line in _read_back(engine):
        console.value(line)
    native = sum(row["linears"] for row in document["execution"] if row["native"])
    total = sum(row["linears"] for row in document["execution"])
    console.value(f"{native} of {total} linears run natively")


def _read_back(bundle: Path) -> list[str]:
    """What parity found when it read the packed weights back, where a bundle has brought its evidence."""
    import json

    path = bundle / "evidence" / "parity.json"
    if not path.is_file():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("weights")
        return [f"parity read back {found['weights']:,} packed weights: {found['changed']:,} are not the stored ones"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []  # an older bundle's, or not one of ours: it says nothing of weights


def show_tensorrt(console: Console, document: dict[str, Any]) -> None:
    """A TensorRT plan: what it was built with, and what of that this machine lacks."""
    from trtforge.recipe.units import format_size

    console.result(document)
    stamp, cache = document["tensorrt"], document["kv_cache"]
    console.heading(f"{document['name']}: target tensorrt, {document['quant_format']}, for {stamp['gpu_architecture']}")
    pool = format_size(cache["num_blocks"] * cache["bytes_per_block"])
    options = ", ".join(f"{key} {value}" for key, value in stamp["options"].items() if value not in (False, None))
    rows = [
        ["TensorRT", stamp["version"]],
        ["plugins", f"ABI {stamp['plugins']['abi']}, trtforge {stamp['plugins']['version']}"],
        *([key, str(value)] for key, value in document["limits"].items()),
        ["KV pool", f"{cache['num_blocks']} blocks of {cache['block_size']} tokens, {cache['format']}, {pool}"],
        ["decode buckets", ", ".join(map(str, stamp["decode_buckets"]))],
        ["options", options],
        ["plan", format_size(stamp["plan_bytes"])],
    ]
    console.table("Engine", ["what", "value"], rows)
    show_speculation(console, document)
    show_policy(console, document.get("policy"))
    for finding in document["findings"]:
        console.value(f"cannot be loaded here: {finding}")
    if not document["findings"]:
        console.value("TensorRT and the plugin library of this machine are the engine's")


def show_rtx(console: Console, document: dict[str, Any]) -> None:
    """RTX engines: what each is for, whether its file is the one that was built; exit 1 when one is not."""
    from trtforge.ground.errors import ExitCode
    from trtforge.recipe.units import format_size

    console.result(document)
    cache = document["kv_cache"]
    console.heading(f"{document['name']}: RTX engines, {document['quant_format']}, {document['dtype']}")
    rows = [
        ["loads in", document["loads_in"]],
        *([key, str(value)] for key, value in document["limits"].items()),
        ["KV cache", f"linear, {cache['format']}, {format_size(cache['bytes_per_request'])} a request"],
        *([f"profile {p['name']}", f"batch {p['batch']}, row {p['row']}"] for p in document["profiles"]),
    ]
    console.table("Asked", ["what", "value"], rows)
    engines = document["engines"]
    console.table(
        "RTX engines",
        ["architecture", "file", "size", "intact"],
        [[e["architecture"], e["file"], format_size(e["bytes"]), "yes" if e["intact"] else "NO"] for e in engines],
    )
    damaged = [item["file"] for item in engines if not item["intact"]]
    console.value(f"{len(engines)} RTX engines, {len(damaged)} damaged")
    if damaged:
        raise common.Failed(ExitCode.GATE_FAILED)


def show_trtllm_engine(console: Console, document: dict[str, Any], name: str) -> None:
    """What an engine directory of TensorRT-LLM records, and what of it is broken; exit 1 when anything is."""
    from trtforge.ground.errors import ExitCode
    from trtforge.recipe.units import format_size

    console.result(document)
    console.heading(f"{name}: an engine of TensorRT-LLM {document['version']}")
    console.table("Engine", ["what", "value"], _engine_rows(document))
    console.table("Ranks", ["rank", "plan"], [[rank, format_size(size)] for rank, size in document["ranks"].items()])
    findings = document["findings"]
    _table_of(console, "Faults", findings)
    broken = f", {len(findings)} fault{'s' if len(findings) > 1 else ''}" if findings else ""
    console.value(f"TensorRT-LLM {document['version']}, {len(document['ranks'])} ranks{broken}")
    if findings:
        raise common.Failed(ExitCode.GATE_FAILED)


def _table_of(console: Console, title: str, findings: list[dict[str, Any]]) -> None:
    if findings:
        console.table(title, ["code", "finding"], [[item["code"], item["message"]] for item in findings])


def _engine_rows(document: dict[str, Any]) -> list[list[str]]:
    quantization = document["quantization"] or {}
    mapping = document["mapping"]
    return [
        ["architecture", str(document["architecture"])],
        ["dtype", str(document["dtype"])],
        ["quantization", f"{quantization.get('quant_algo')}, KV cache {quantization.get('kv_cache_quant_algo')}"],
        ["ranks", f"tp {mapping.get('tp_size', 1)} x pp {mapping.get('pp_size', 1)}"],
        *([key, str(value)] for key, value in document["settings"].items()),
    ]


def show_trtllm(console: Console, document: dict[str, Any]) -> None:
    """An artifact for TensorRT-LLM: asked, compiled or not, and the differences; exit 1 when there are any."""
    from trtforge.ground.errors import ExitCode

    console.result(document)
    built = document.get("engine")
    state = "compiled" if document["compiled"] else "compiled since" if built else "NOT compiled"
    console.heading(f"{document['name']}: target {document['target']}, {document['quant_format']}, {state}")
    parallel = document["parallel"]
    rows = [
        ["TensorRT-LLM", f"{document['tensorrt_llm']} (stack {document['stack']})"],
        ["container", str(document["container"])],
        ["ranks", f"tp {parallel['tp']} x pp {parallel['pp']} x ep {parallel['ep']}"],
        ["KV cache", f"{document['kv_cache']['format']}, blocks of {document['kv_cache']['block_size']} tokens"],
        *([key, str(value)] for key, value in document["limits"].items()),
    ]
    again = document.get("conversion", {}).get("requantized")
    if again:
        rows.append(["weights that the conversion rounded again", f"{again['weights']:,}"])
    if not document["compiled"] and not built:
        rows.append(["not compiled", str(document["not_compiled"])])
        rows += [["compile it with", name] for name in document.get("scripts", ())]
    if "serve_command" in document:
        rows.append(["serve it with", document["serve_command"]])
    console.table("Asked", ["what", "value"], rows)
    if built:
        console.table("Engine", ["what", "value"], _engine_rows(built))
    findings = document.get("findings", [])
    _table_of(console, "Differences", findings)
    console.value(f"{len(findings)} differences from what was asked" if built else state)
    if findings:
        raise common.Failed(ExitCode.GATE_FAILED)
