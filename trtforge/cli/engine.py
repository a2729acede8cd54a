"""``trtforge engine``: engine directories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common

if TYPE_CHECKING:
    from trtforge.console import Console

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
) -> None:
    """Say for every linear what is stored, what is executed, and whether natively or emulated."""
    from builder.targets import engine_info
    from trtforge.recipe.units import format_size

    folder = engine / "engine" if (engine / "engine" / "engine.json").is_file() else engine
    document = engine_info(folder, capability)
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
    console.table(
        "Linears by execution",
        ["stored", "executed", "kernel", "", "linears", "weights"],
        [
            [
                row["stored"],
                row["executed"],
                row["kernel"],
                "native" if row["native"] else "emulated",
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
    native = sum(row["linears"] for row in document["execution"] if row["native"])
    total = sum(row["linears"] for row in document["execution"])
    console.value(f"{native} of {total} linears run natively")
