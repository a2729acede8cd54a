"""The report of a bundle: what was built, how good and how fast it is, how to serve it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from builder.targets import target_module
from evals.report import Report, Section, Table
from evals.speculation.report import section
from evals.speed.outcome import Outcome
from launcher.plans import plan
from launcher.scripts import script_names
from launcher.serve import JSON_HEADER
from trtforge.ground.units import format_size
from trtforge.pipeline.stage import StageContext
from trtforge.pipeline.stages.common import plain, read_json, size_of, weight_bytes
from trtforge.pipeline.stages.quality_report import quality_section
from trtforge.pipeline.stages.smoke import SMOKE_FILE
from trtforge.pipeline.stages.targets import not_run
from trtforge.store.artifact import Artifact
from trtforge.tables import stack_table


def build_report(context: StageContext) -> Report:
    """The report over the artifacts of a run."""
    inputs = context.inputs
    gates = [gate for artifact in inputs.values() for gate in artifact.manifest["gates"]]
    passed = all(gate["passed"] for gate in gates)
    missing = {name: reason for name, artifact in inputs.items() if (reason := not_run(artifact)) is not None}
    unseen = [gate for reason in missing.values() for gate in reason["gates"]]
    increase = inputs["evaluate"].summary["increase"]
    verdict = (
        f"{len(gates)} gates {'passed' if passed else 'checked, some were missed'}; perplexity "
        f"{increase['value']:+.2%} [{increase['low']:+.2%}, {increase['high']:+.2%}] against the baseline"
    )
    if unseen:
        verdict += f"; {len(unseen)} gates were not run: {', '.join(unseen)}"
    sections = [
        _model(inputs),
        quality_section(
            inputs["baseline"].summary, inputs["evaluate"].summary, inputs["parity"].summary, context.recipe
        ),
        *_speculation(inputs, missing),
        *([] if "bench" in missing else [_speed(inputs["bench"])]),
        *([] if "smoke" in missing else [_server(inputs["smoke"])]),
        _gates(gates),
        *([_not_run(missing)] if missing else []),
        _use(context, missing),
        _origin(inputs),
    ]
    data = {
        "recipe": plain(context.recipe),
        "stages": {name: _stage_data(artifact) for name, artifact in inputs.items()},
        "gates": gates,
        "not_run": missing,
    }
    outcome = None if passed and unseen else passed
    return Report(f"{context.recipe.name}: deployment report", verdict, outcome, sections, data)


def _stage_data(artifact: Artifact) -> dict[str, Any]:
    return {
        "content_hash": artifact.manifest["content_hash"],
        "summary": dict(artifact.summary),
        "measurements": artifact.manifest.get("measurements", {}),
    }


def _model(inputs: Mapping[str, Artifact]) -> Section:
    source, quantized, engine = inputs["intake"].summary, inputs["quantize"].summary, inputs["build"].summary
    before, after = weight_bytes(inputs["intake"]), weight_bytes(inputs["quantize"])
    rows = (
        ("source", str(source["source"])),
        ("architecture", f"{source['architecture']}, {source['parameters']:,} parameters"),
        ("weights before", format_size(before)),
        ("weights after", f"{format_size(after)} ({after / max(before, 1):.0%})"),
        ("format", f"{quantized['format']}, KV cache {quantized['kv_cache']}"),
        ("engine", f"target {engine['target']}, {format_size(size_of(inputs['build']))}"),
        ("limits", ", ".join(f"{key} {value}" for key, value in engine["limits"].items())),
        *target_module(engine["target"], "info").report_rows(engine),
        *_shared_scales(quantized),
    )
    emulated = quantized.get("emulated") or []
    note = f"Emulated, for want of the hardware: {', '.join(emulated)}." if emulated else ""
    return Section("What was built", note, (Table(("", ""), rows),))


def _shared_scales(quantized: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What was rounded again for a target that multiplies several linears as one."""
    again = quantized.get("one_scale") or {}
    if not again.get("weights"):
        return ()
    text = (
        f"{again['weights']:,} weights of {again['linears']} linears that share a scale with others, by at most "
        f"{again['largest_relative_change']:.2%} each, before they were evaluated"
    )
    return (("rounded again for TensorRT-LLM", text),)


def _speed(bench: Artifact) -> Section:
    outcome = Outcome.of_json(bench.manifest["measurements"])
    machine = bench.manifest["measurements"]["machine"]
    text = (
        f"Measured {bench.manifest['created']} on {machine['cpus']} × {machine['cpu']} ({machine['capability']}), "
        f"{format_size(machine['memory'])} of memory. Times hold for that machine at that moment."
    )
    return outcome.section(text)


def _speculation(inputs: Mapping[str, Artifact], missing: Mapping[str, Any]) -> list[Section]:
    """What drafts gain and that they change nothing; nothing for a recipe without them."""
    stage = inputs.get("speculation")
    if stage is None or "speculation" in missing:
        return []
    return [section(stage.summary, stage.manifest["measurements"])]


def _server(smoke: Artifact) -> Section:
    rows = tuple((c["name"], "yes" if c["passed"] else "NO", c["detail"]) for c in read_json(smoke.path / SMOKE_FILE))
    text = f"Against a real Triton server {smoke.summary['server'] or '(version of PATH)'} on the emitted repository."
    times = smoke.manifest["measurements"]
    if times:
        text += (
            f" It was ready {times['load_seconds']:.1f} s after its start; its first answer took "
            f"{times['first_seconds']:.3f} s, {times['warm_up_seconds']:.3f} s longer than the same answer later."
        )
    return Section("Server", text, (Table(("check", "passed", "detail"), rows),))


def _gates(gates: list[dict[str, Any]]) -> Section:
    rows = tuple((g["name"], "yes" if g["passed"] else "NO", g["detail"]) for g in gates)
    return Section("Gates", "", (Table(("gate", "passed", "figures"), rows),))


def _not_run(missing: Mapping[str, Mapping[str, Any]]) -> Section:
    rows = tuple((name, ", ".join(reason["gates"]) or "-", reason["reason"]) for name, reason in missing.items())
    text = "Nothing below was looked at on the engine; do so on the GPU machine before traffic is sent to it."
    return Section("Not run", text, (Table(("stage", "gates without a verdict", "why"), rows),))


def _use(context: StageContext, missing: Mapping[str, Any]) -> Section:
    """How to serve the bundle, or what to do with engines that nothing here serves."""
    if not context.recipe.target.layouts:
        return _use_elsewhere(context.inputs["build"])
    return _serving_of_trtllm(context) if missing else _serving(context)


def _use_elsewhere(build: Artifact) -> Section:
    """What the target says of engines that no layout serves."""
    use = target_module(build.summary["target"], "info").use(build.summary)
    return Section(use.title, use.text, preformatted=use.blocks)


def _serving_of_trtllm(context: StageContext) -> Section:
    """Compile it where that is to be done yet, then each server that the stack has."""
    engine = context.inputs["build"].summary
    first = ["trtforge verify BUNDLE", f"trtforge stack check {engine['stack']}"]
    blocks = ["\n".join(first)]
    target = context.recipe.target
    if target.compiled and not engine["compiled"]:
        container = [name for name in engine["scripts"] if name.rpartition("/")[2].startswith("container")]
        inside = "in the stack's container" if container else "where the stack is installed"
        compile_it = [f"# compile, once, on the GPU machine ({inside})"]
        compile_it += [f"sh BUNDLE/engine/{name}" for name in container or engine["scripts"]]
        if container:
            compile_it.append("# the same when you are inside that container already: sh BUNDLE/engine/build.sh")
        blocks.append("\n".join([*compile_it, "trtforge engine info BUNDLE"]))
    row = stack_table().row(engine["stack"])
    has_triton = row is not None and row.triton is not None
    text = "BUNDLE is the folder of this report. Everything is started in it; scripts count the GPUs before they start."
    if target.llm_api:
        blocks += _without_triton(engine)
    if has_triton:
        blocks += _with_triton(context, engine["container"])
    else:
        text += (
            f" No container of {engine['stack']} has Triton beside TensorRT-LLM {engine['tensorrt_llm']}; "
            "launch/server.sh starts it on repository/ where an installation has both."
        )
    return Section("Serve it", text, preformatted=tuple(blocks))


#: a bundle's folder as a container sees it
_DOCKER = "docker run --rm --gpus all --ipc host --network host --mount type=bind,src=BUNDLE,dst=/bundle,readonly"


def _without_triton(engine: Mapping[str, Any]) -> list[str]:
    """``trtllm-serve``, where it is installed and in the stack's container, and a question to it."""
    serve = shlex.join(engine["serve"])
    blocks = []
    if engine["container"]:
        where = f"{_DOCKER} --workdir /bundle/engine {engine['container']}"
        blocks.append(f"# serve with TensorRT-LLM's own server, in the stack's container\n{where} {serve}")
    blocks.append(f"# the same where TensorRT-LLM {engine['tensorrt_llm']} is installed\ncd BUNDLE/engine && {serve}")
    served_as = engine["serve"][1].rpartition("/")[2]  # the folder's name
    body = f'{{"model": "{served_as}", "prompt": "The capital of France is", "max_tokens": 32}}'
    ask = f"curl -s http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' -d '{body}'"
    return [*blocks, f"# ask it\n{ask}"]


def _with_triton(context: StageContext, container: str | None) -> list[str]:
    """The scripts of ``launch``, what each of them starts, and a question to the model that clients ask."""
    made, blocks = plan(context.recipe), []
    names = script_names(made)
    for name in names:
        how = "cd BUNDLE && sbatch launch/slurm.sh" if name == "slurm.sh" else f"sh BUNDLE/launch/{name}"
        runs = " ".join(made.ranks[0].command)
        if name != "server.sh":
            starter = "srun" if name == "slurm.sh" else "mpirun"
            runs = f"{starter} … {len(made.ranks)} server{'s' if len(made.ranks) > 1 else ''}, the first: {runs}"
        blocks.append(f"# serve with Triton: {runs}\n{how}")
    if container:
        script = next(name for name in names if name != "slurm.sh")
        blocks.append(f"# the same in the stack's container\n{_DOCKER} {container} sh /bundle/launch/{script}")
    return [*blocks, f"# ask Triton\n{_curl(context)}"]


def _curl(context: StageContext) -> str:
    """One question to the model that clients ask, by the names of the layout's inputs."""
    question = context.recipe.layout.question
    assert question is not None, "bundles of trtforge's own runtime say it with the model's name"
    body = f'"text_input": "What is the capital of France?", "{question.tokens}": 32'
    verb = "generate"
    if context.recipe.triton.decoupled:
        verb, body = "generate_stream", f'{body}, "{question.stream}": true'
    return f"curl -sN {JSON_HEADER} http://127.0.0.1:8000/v2/models/{question.model}/{verb} -d '{{{body}}}'"


def _serving(context: StageContext) -> Section:
    from evals.report import Section
    from launcher.serve import DEFAULT_PORTS, Endpoints

    http, grpc, metrics = (f"127.0.0.1:{DEFAULT_PORTS[name]}" for name in ("http", "grpc", "metrics"))
    endpoints = Endpoints(context.recipe.name, http, grpc, metrics)
    commands = (
        "trtforge verify BUNDLE",
        "trtforge serve BUNDLE",
        endpoints.curl(),
        endpoints.curl_stream(),
        endpoints.tritonclient(),
    )
    return Section("Serve it", "BUNDLE is the folder of this report.", preformatted=("\n".join(commands),))


def _origin(inputs: Mapping[str, Artifact]) -> Any:
    rows = tuple(
        (
            name,
            str(artifact.manifest["content_hash"])[:16],
            ", ".join(f"{tool} {version}" for tool, version in artifact.manifest["tools"].items()),
        )
        for name, artifact in inputs.items()
    )
    return Section("Where it comes from", "", (Table(("stage", "content", "tools"), rows),))
