"""Moves a repository of TensorRT-LLM models to another version of Triton's backend, beside the old one.

Within the engine versions the texts are edited in place of what changed, and all else (comments, order, hand
edits) stays as it was. To 1.3 and later, where engines are not run any more, the chain around the engine becomes one
model of the LLM API; settings without a counterpart are listed. Other models are carried over as they are, and those
that ask a model that changed are named. Whatever moves its meaning is said. The old repository is never written to, and
links that leave it are not followed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from triton_repo.callers import calls
from triton_repo.copying import copy_repository
from triton_repo.diff import infer_versions
from triton_repo.edits import Editor, parameter_text
from triton_repo.engine_versions import engine_version
from triton_repo.history import Change, load_history
from triton_repo.layouts.writing import writing
from triton_repo.lint.hits import listed
from triton_repo.lint.repository import HOLE, Model, Repository, read_repository
from triton_repo.lint.roles import Chain, chain, role
from triton_repo.lint.run import lint_repository
from triton_repo.upgrade_llmapi import write_llmapi
from triton_repo.upgrade_report import Upgrade
from trtforge.ground.errors import ForgeError
from trtforge.ground.paths import real_path

ALIASES = {"inflight_batching": "inflight_fused_batching"}


def upgrade_repository(
    folder: Path, out: Path, *, to: str, since: str | None = None, checkpoint: str | None = None
) -> Upgrade:
    """Write the repository for version ``to`` as the folder ``out``; it appears whole or not at all.

    Args:
        folder: the repository; it is only read.
        out: a new or empty folder outside of it.
        to: version of the backend (``0.19``, ``1.2.1``) or of TensorRT-LLM (1.3 and later: the LLM API).
        since: the version that the repository belongs to; found from its engine or its parameters when not given.
        checkpoint: for 1.3 and later: the Hugging Face checkpoint that the engine was built from.

    Raises:
        ForgeError: TF-TRI-100 (unreadable), TF-TRI-240 (unknown version), TF-TRI-241 (nothing to upgrade, or
            backwards), TF-TRI-242 (a file that cannot be copied), TF-TRI-243 (a configuration that does not
            parse), TF-TRI-244 (``out`` is inside the repository), TF-TRI-003 (``out`` is not empty).
    """
    history = load_history()
    llmapi = history.is_llmapi(to)
    if not llmapi:
        history.index(to)
    repository = read_repository(folder)
    _readable(repository)
    models = chain(repository)
    found = infer_versions(repository)
    if found is None:
        raise ForgeError(
            "TF-TRI-241",
            f"{folder} has no model that runs a TensorRT-LLM engine",
            asked=str(folder),
            why="Only TensorRT-LLM's parameters and tensors change between versions; other models stay as they are.",
            remedies=["name a repository with the model tensorrt_llm"],
        )
    low, high = found
    # parameters that fit several versions: the latest of them that does not lie beyond the new one
    old = since or (high if llmapi or history.index(high) <= history.index(to) else max(low, to, key=history.index))
    if not llmapi and history.index(to) < history.index(old):
        raise ForgeError(
            "TF-TRI-241",
            f"the repository belongs to {old}, which is later than {to}",
            asked=f"--to {to}",
            numbers={"from": old, "to": to},
            why="Later parameters would be dropped without a replacement.",
            remedies=[f"--to {history.versions[-1]}", "--from VERSION when the guess is wrong"],
        )
    if real_path(out) == real_path(folder) or real_path(folder) in real_path(out).parents:
        raise ForgeError(
            "TF-TRI-244",
            "the new repository would lie inside the old one",
            asked=f"-o {out}",
            why="A server would take it for one of the old one's models, and the old one would be written to.",
            remedies=[f"-o {real_path(folder).parent / (real_path(folder).name + '-upgraded')}"],
        )
    result = Upgrade("llmapi" if llmapi else history.layout, old, to)
    with writing(out) as target:
        if llmapi:
            write_llmapi(repository, models, target, result, checkpoint)
        else:
            copy_repository(repository.root, target, result)
            _edit_all(repository, models, target, result, history.between(old, to))
            _say_callers(repository, models, result, history.between(old, to))
        _say_engines(models, result, to)
    _say_lost_paths(models.preprocessing[:1] if llmapi else models.all, out, result, checkpoint)
    result.findings = lint_repository(out).findings
    return result


def _say_engines(models: Chain, result: Upgrade, to: str) -> None:
    """An engine is loaded by the version that built it and by no other."""
    for model in models.engines:
        built, path = engine_version(model), model.raw_parameter("gpt_model_path") or "the engine"
        if result.layout == "llmapi":
            meaning = (
                "engines are not run any more: the LLM API loads the checkpoint; one that was quantized for the engine "
            )
            meaning += "is quantized again (ModelOpt, Hugging Face export)"
        elif built is not None and built.removesuffix(".0") == to.removeprefix("v").removesuffix(".0"):
            continue
        else:
            by = f"built by TensorRT-LLM {built}" if built is not None else "built by an earlier version, if it is old"
            meaning = f"{by}; {to} loads its own engines only: rebuild the engine with trtllm-build of {to}"
        result.say(model.name, "left", f"engine {path}", meaning)


def _say_callers(repository: Repository, models: Chain, result: Upgrade, changes: list[Change]) -> None:
    """Models of the repository's owner that ask an engine's model: whether what they ask with has another name now."""
    for engine in models.engines:
        renamed = {c.name: c for c in changes if c.kind == "tensor_renamed" and c.model == "tensorrt_llm"}
        for call in calls(repository, engine):
            if call.caller.is_ensemble or role(call.caller) is not None:
                continue  # edited, or said already
            moved = [f"{name} → {renamed[name].to}" for name in call.tensors if name in renamed]
            asks = f"it asks {engine.name} with {listed(call.tensors)}" if call.tensors else f"it asks {engine.name}"
            if moved:
                meaning = f"{asks}: {', '.join(moved)} since {result.new_version}, change its code"
                result.say(call.caller.name, "left", call.where, meaning)
            else:
                result.say(call.caller.name, "kept", call.where, f"{asks}: names that stay")


def _say_lost_paths(models: Sequence[Model], out: Path, result: Upgrade, checkpoint: str | None) -> None:
    """Name relative paths that led somewhere from the old place and lead nowhere from the new one.

    They are carried over as they are, since a repository may still be moved to where it belongs. The LLM API's
    model has one, ``model``, which was the tokenizer's.
    """
    llmapi = result.layout == "llmapi"
    for model in models:
        for key in ("tokenizer_dir",) if llmapi else ("tokenizer_dir", "gpt_model_path"):
            stated = model.parameter(key)
            if stated is None or Path(stated).is_absolute() or (llmapi and checkpoint is not None):
                continue
            led = model.here(stated)
            name = "tensorrt_llm" if llmapi else model.name
            if led is None or any((start / stated).exists() for start in (out / name, out.parent)):
                continue
            result.say(
                name,
                "left",
                f"{'model' if llmapi else key}: {stated}",
                f"led to {os.path.normpath(led)} and leads nowhere from {out}: write the full path, or put the new "
                "repository beside the old one",
            )


def _readable(repository: Repository) -> None:
    """Refuse what cannot be carried over whole."""
    broken = [
        f"{model.path}:{fault.line}: {fault.message}"
        for model in repository.models.values()
        if model.config is not None and not model.readable
        for fault in model.config.faults
        if fault.kind == "syntax"
    ]
    broken += [f"{p.path}: {p.reason}" for m in repository.models.values() for p in m.problems if not p.outside]
    if broken:
        raise ForgeError(
            "TF-TRI-243",
            "a configuration cannot be read, so it cannot be upgraded",
            asked=str(repository.root),
            why="; ".join(broken[:5]),
            remedies=["correct it first: trtforge triton lint"],
        )


# editing -----------------------------------------------------------------------------------------
def _edit_all(repository: Repository, models: Chain, target: Path, result: Upgrade, changes: list[Change]) -> None:
    engines = {engine.name for engine in models.engines}
    for model in repository.models.values():
        if model.config is None:
            continue
        editor = Editor(model.config.text.text)
        found = role(model)
        for change in changes:
            if change.model == found:
                _apply(model, editor, change, result)
            if change.kind == "tensor_renamed" and model.is_ensemble:
                _rename_in_steps(model, editor, change, engines, result)
        if found == "tensorrt_llm":
            _batching(model, editor, result)
        _code(model, changes, found, result)
        if editor.changed:
            place = target / model.name / model.path.name
            if place.is_symlink():
                place.unlink()
            place.write_text(editor.apply(), encoding="utf-8")


def _apply(model: Model, editor: Editor, change: Change, result: Upgrade) -> None:
    node = editor.parameter(change.name)
    if change.kind == "renamed" and node is not None:
        _rename(model, editor, change, result)
    elif change.kind in ("removed", "ignored") and node is not None:
        value = model.raw_parameter(change.name)
        editor.drop(node, f"{change.name} ({value}) is gone since {change.version}")
        result.say(model.name, "removed", f"{change.name}: {value}", change.says)
    elif change.kind == "default" and change.before is not None and model.parameter(change.name) is None:
        if change.name in _dropped_later(change, result):
            return
        old = editor.parameter(change.name)
        if old is not None:
            inner = old.first("value")
            text = inner.first("string_value") if inner is not None else None
            if text is not None:
                editor.value(text, change.before)
        else:
            editor.append(parameter_text(change.name, change.before))
        result.say(
            model.name,
            "set",
            f"{change.name}: {change.before}",
            f"the default became {change.to} in {change.version}; what held before is written out ({change.says})",
        )
    elif change.kind == "tensor_renamed":
        for side in ("input", "output"):
            for name in editor.tensors(side):
                if name.string() == change.name and change.to is not None:
                    editor.value(name, change.to)
                    result.say(model.name, "renamed", f"{side} {change.name} → {change.to}", change.says)


def _dropped_later(change: Change, result: Upgrade) -> set[str]:
    """Parameters that lose their effect on the way: their default need not be written out."""
    history = load_history()
    return {
        other.name
        for other in history.between(change.version, result.new_version)
        if other.kind in ("removed", "ignored") and other.model == change.model
    }


def _rename(model: Model, editor: Editor, change: Change, result: Upgrade) -> None:
    node = editor.parameter(change.name)
    assert node is not None and change.to is not None
    key = node.first("key")
    inner = node.first("value")
    text = inner.first("string_value") if inner is not None else None
    if editor.parameter(change.to) is not None:
        editor.drop(node, f"{change.name} is called {change.to} since {change.version}")
        result.say(model.name, "removed", change.name, f"{change.to} is set beside it and holds")
        return
    if key is None:
        return
    editor.value(key, change.to)
    meaning = change.says
    if change.replace is not None and text is not None and not HOLE.search(text.string()):
        editor.value(text, change.replace)
        meaning += f" (set to {change.replace} in place of {text.string()})"
    result.say(model.name, "renamed", f"{change.name} → {change.to}", meaning)


def _rename_in_steps(model: Model, editor: Editor, change: Change, engines: set[str], result: Upgrade) -> None:
    for engine in sorted(engines):
        for step in editor.steps(engine):
            for side in ("input_map", "output_map"):
                for entry in step.all(side):
                    key = entry.first("key")
                    if key is not None and key.string() == change.name and change.to is not None:
                        editor.value(key, change.to)
                        result.say(model.name, "renamed", f"{side} {change.name} → {change.to}", change.says)


def _batching(model: Model, editor: Editor, result: Upgrade) -> None:
    """V1 and the old alias become in-flight batching."""
    stated = model.parameter("gpt_model_type")
    node = editor.text.find("parameters", "key=gpt_model_type", "value", "string_value")
    if stated is None or node is None:
        return
    if stated.lower() == "v1":
        editor.value(node, "inflight_fused_batching")
        result.say(
            model.name,
            "set",
            "gpt_model_type: V1 → inflight_fused_batching",
            "requests join and leave the batch at every step; the engine must have a paged KV cache and packed "
            "input (trtllm-build --kv_cache_type paged --remove_input_padding enable)",
        )
    elif stated.lower() in ALIASES:
        editor.value(node, ALIASES[stated.lower()])
        result.say(model.name, "set", f"gpt_model_type: {stated} → {ALIASES[stated.lower()]}", "the name in use now")


def _code(model: Model, changes: list[Change], found: str | None, result: Upgrade) -> None:
    """The models' code belongs to a version and is copied as it is; say what it does not know."""
    if found not in ("preprocessing", "postprocessing", "tensorrt_llm_bls", "tensorrt_llm") or model.code is None:
        return
    names = [
        change.name
        for change in changes
        if change.kind in ("renamed", "tensor_renamed")
        and (f'"{change.name}"' in model.code or f"'{change.name}'" in model.code)
    ]
    if names:
        result.say(model.name, "left", "model.py", f"it says {', '.join(names)}: take the code of {result.new_version}")
    if found == "tensorrt_llm":
        return
    if not names and result.old_version != result.new_version:
        meaning = f"copied as it is; where it came from NVIDIA, take {result.new_version}'s own"
        result.say(model.name, "left", "model.py", meaning)
