"""``trtforge verify``, ``trtforge serve`` and ``trtforge openai``: bundles and what is put before them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common, openai
from trtforge.ground.errors import EnvironmentLacks, ExitCode, ForgeError

if TYPE_CHECKING:
    from launcher.serve import Endpoints
    from trtforge.ground.console import Console

BundleArgument = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle's directory.")]


@common.forge_command
def verify(
    console: Console,
    bundle: BundleArgument,
    stamps: Annotated[bool, typer.Option("--stamps/--no-stamps", help="Hold its stamps against this machine.")] = True,
) -> None:
    """Check every hash of a bundle, and its stamps against this machine; exit 1 on a fault."""
    from trtforge.ground.units import format_size
    from trtforge.pipeline.published import verify_published

    if not bundle.is_dir():
        raise ForgeError(
            "TF-BND-001",
            f"there is no directory {bundle}",
            asked=str(bundle),
            why="a link whose bundle was removed, or taken out of use for damage" if bundle.is_symlink() else None,
            remedies=["trtforge run RECIPE prints the bundle's path", "trtforge artifacts list"],
        )
    with console.progress("verify") as progress:
        report = verify_published(bundle, progress=progress, stamps=stamps)
    console.result(report.to_json())
    if report.findings:
        console.table(
            "Findings",
            ["code", "verdict", "file", "finding", "remedy"],
            [[item.code, item.severity, item.path, item.message, item.remedy] for item in report.findings],
        )
    errors = sum(item.severity == "error" for item in report.findings)
    verdict = "verified" if report.ok else f"refused ({errors} faults)"
    if report.manifest_sha256 is not None:
        console.print(f"manifest.json has SHA-256 {report.manifest_sha256}; who made it, no hash can say")
    if report.verdict is not None:
        console.print(f"verdict {report.verdict}")
    console.value(f"{bundle}: {verdict}, {report.files} files, {format_size(report.bytes)}")
    if not report.ok:
        raise common.Failed(ExitCode.GATE_FAILED)


@common.forge_command
def serve(
    console: Console,
    bundle: BundleArgument,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="HTTP port; 0 picks a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="gRPC port; 0 picks a free one.")] = 8001,
    metrics_port: Annotated[int, typer.Option(help="Metrics port; 0 picks a free one.")] = 8002,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The server's log; default: among the store's logs.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it is ready.")] = 300.0,
    drain: Annotated[int, typer.Option(help="Seconds that running requests get to finish when it is stopped.")] = 30,
    verified: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Check the bundle's hashes and stamps first.")
    ] = True,
    openai_port: Annotated[
        int | None, typer.Option(help="Also serve OpenAI's API on this port; 0 picks a free one.")
    ] = None,
    openai_host: Annotated[str, typer.Option(help="Address that OpenAI's API listens on.")] = "127.0.0.1",
    openai_keys: openai.Keys = None,
    openai_model: openai.Model = None,
    openai_log: openai.Log = None,
    openai_in_flight: openai.InFlight = openai.IN_FLIGHT,
    openai_timeout: openai.Timeout = None,
    openai_max_tokens: openai.MaxTokens = openai.MAX_TOKENS,
    tool_parser: openai.ToolParser = None,
) -> None:
    """Serve a bundle with Triton until SIGINT or SIGTERM, then drain; a second signal ends the drain."""
    from launcher.serve import find_repository
    from launcher.serve import serve as serve_bundle

    find_repository(bundle)
    settings = openai.settings_of(
        port=openai_port,
        host=openai_host,
        keys=openai_keys,
        name=openai_model,
        log=openai_log,
        in_flight=openai_in_flight,
        timeout=openai_timeout,
        answer_tokens=openai_max_tokens,
        tool_parser=tool_parser,
    )
    if verified:
        require_sound(console, bundle)
    progress = console.progress("serve")
    progress.start("loading the engine")

    def ready(endpoints: Endpoints) -> None:
        progress.close("ready")
        console.result(endpoints.to_json())
        console.print(f"  HTTP     http://{endpoints.http}")
        console.print(f"  gRPC     {endpoints.grpc}")
        console.print(f"  metrics  http://{endpoints.metrics}/metrics")
        console.print(f"  {endpoints.curl()}")
        console.print(f"  {endpoints.curl_stream()}")
        console.print(f"  {endpoints.tritonclient()}")
        if settings is not None:
            openai.warn_open(console, settings)
            console.print(f"  OpenAI   http://{endpoints.openai}/v1")
            console.print(f"  {endpoints.curl_openai()}")
        console.print(f"Stop it with Ctrl-C or SIGTERM: running requests get {drain} s to finish; again to end them.")
        if console.mode == "quiet":
            console.value(f"http://{endpoints.http}")

    try:
        serve_bundle(
            bundle,
            host=host,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            log_path=log or common.server_log(f"serve-{bundle.name or 'bundle'}"),
            ready_timeout=timeout,
            exit_timeout=drain,
            openai=settings,
            on_ready=ready,
            on_drain=lambda seconds: console.print(
                f"draining: running requests have {seconds} s to finish; again to end"
            ),
        )
    except BaseException:
        progress.close("failed")
        raise


def require_sound(console: Console, bundle: Path) -> None:
    """Refuse a damaged or unfinished bundle, or one that this machine cannot serve, by its first fault."""
    from trtforge.pipeline.published import verify_published
    from trtforge.store.stamps import unservable

    with console.progress("verify") as progress:
        report = verify_published(bundle, progress=progress)
    faults = [item for item in report.findings if item.severity == "error"]
    if faults:
        raise ForgeError(
            faults[0].code,
            f"the bundle cannot be trusted: {faults[0].path}: {faults[0].message}",
            asked=str(bundle),
            numbers={"faults": len(faults)},
            why="What is served must be what was measured.",
            remedies=[faults[0].remedy, f"trtforge verify {bundle} lists every fault"],
        )
    stops = unservable(report.manifest or {}, report.findings)
    if stops:
        raise EnvironmentLacks(
            stops[0].code,
            f"the bundle is sound and cannot be served on this machine: {stops[0].message}",
            asked=str(bundle),
            numbers={f"{item.code} {index}": item.message for index, item in enumerate(stops, 1)},
            why="Starting the server would fail while it loads the engine.",
            remedies=list(dict.fromkeys(item.remedy for item in stops)),
        )
    for item in report.findings:
        console.warning(f"{item.code}: {item.path}: {item.message}")
