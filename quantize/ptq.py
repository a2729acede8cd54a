"""ModelOpt's quantizers in a model's linears, calibrated as a plan says.

On a CPU the model runs in float32, whatever the checkpoint's dtype: half-precision kernels are missing or slow on many
CPUs, and scales come out as exact as they can.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.metadata
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quantize import corpora
from quantize.awq_search import METHOD, SEARCH_PASS, AwqSearch
from quantize.experts import Coverage, expert_linears, in_model, quantizer_prefix
from quantize.export import stored_dtype
from quantize.plan import QuantPlan
from quantize.quiet import quiet
from trtforge.formats.table import FormatRow, KvMode, modelopt_config
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.progress import Progress
from trtforge.recipe.schema import Quantize

if TYPE_CHECKING:
    import torch

#: tokens of one calibration forward pass; AWQ re-quantizes every weight once a pass, so it gets longer ones
_TOKENS_A_PASS = 2048
_TOKENS_A_PASS_AWQ = 8192
#: what a module may have; the experts of a layer are one module with one input quantizer a projection
_QUANTIZERS = (
    *("weight_quantizer", "input_quantizer", "k_bmm_quantizer", "v_bmm_quantizer"),
    *("gate_up_proj_input_quantizer", "down_proj_input_quantizer"),
)


def calibration_batch_of(
    plan: QuantPlan,
    section: Quantize,
    config: dict[str, Any],
    checkpoint: Path,
    base_dir: Path,
    summary: dict[str, Any],
) -> np.ndarray | None:
    """Calibration prompts, int64 [samples, sequence], or None when the plan needs no statistics."""
    if not plan.needs_calibration and plan.kv.scales != "calibrated":
        return None
    asked = section.calibration
    corpus = corpora.load_corpus(asked.corpus, base_dir, "calibration")
    batch = corpora.calibration_batch(
        corpus,
        corpora.load_tokenizer(checkpoint),
        samples=asked.samples,
        sequence_length=asked.sequence_length,
        seed=asked.seed,
        max_positions=config.get("max_position_embeddings"),
    )
    summary["calibration"] = {
        "corpus": corpus.name,
        "corpus_sha256": corpus.sha256,
        "samples": asked.samples,
        "sequence_length": asked.sequence_length,
        "seed": asked.seed,
    }
    return batch


def calibrated_model(
    plan: QuantPlan,
    checkpoint: Path,
    config: dict[str, Any],
    batch: np.ndarray | None,
    section: Quantize,
    report: Progress,
    summary: dict[str, Any] | None = None,
    timings: dict[str, float] | None = None,
    *,
    search: AwqSearch | None = None,
    allow_remote_code: bool = False,
) -> Any:
    """The checkpoint's model with ModelOpt's calibrated quantizers in its linears, as the plan says.

    Args:
        batch: calibration prompts, int64 [samples, sequence]; None where no statistics are needed.
        summary, timings: get what was used, and seconds by step.

    Raises:
        ForgeError: ``TF-QNT-010``, ``-011``, ``-013``, ``-014`` as :func:`quantize.checkpoint.quantize_checkpoint`.
    """
    summary = {} if summary is None else summary
    timings = {} if timings is None else timings
    report.start("loading ModelOpt")
    with timed(timings, "import"), quiet():
        torch = import_stack()

        from quantize.emulation import emulated_block_quantization
    summary["modelopt"] = importlib.metadata.version("nvidia-modelopt")
    torch.manual_seed(section.calibration.seed)
    report.start("loading the model")
    with timed(timings, "load"), quiet():
        model = load_model(checkpoint, allow_remote_code)
    settings = build_config(plan, summary["modelopt"])
    coverage = Coverage(section.experts.calibrate == "all")
    with emulated_block_quantization() as emulated, torch.no_grad():
        if emulated:
            summary["emulated"] = emulated_arithmetic(plan)
        with timed(timings, "calibrate"), quiet():
            loop = None if batch is None else coverage.over(forward_loop(model, batch, plan, settings, report, search))
            calibrate(model, plan, settings, loop, stored_dtype(config))
        summary["experts"] = coverage.summary(section.experts)
    return model


def emulated_arithmetic(plan: QuantPlan) -> list[str]:
    """What of a format's arithmetic this machine emulates while it calibrates, in words."""
    names = [row.name for row in plan.rows if row.cpu.evaluate == "emulated"]
    return [f"the {name} arithmetic of calibration and evaluation" for name in names]


def calibrate(
    model: Any, plan: QuantPlan, settings: dict[str, Any], loop: Callable[[Any], None] | None, dtype: torch.dtype
) -> None:
    """Put ModelOpt's calibrated quantizers into a model's linears, as the plan says.

    Args:
        settings: ModelOpt's configuration (:func:`build_config`).
        loop: sends the calibration text through the model; None where no statistics are needed.
        dtype: of the checkpoint's unquantized tensors.

    Raises:
        ForgeError: ``TF-QNT-011`` calibration gave unusable scales.
    """
    import modelopt.torch.quantization as mtq

    try:
        mtq.quantize(model, settings, forward_loop=loop)
    except AssertionError as error:  # ModelOpt asserts that statistics hold no NaN
        raise _unusable_scales({"modelopt": str(error)[:200]}) from error
    check_quantizers(model, plan)
    round_pre_quant_scales(model, dtype)


def import_stack() -> Any:
    """torch, once all that quantization needs loads; raises ``TF-QNT-013`` where something does not."""
    try:
        torch, *_ = map(importlib.import_module, ("torch", "transformers", "accelerate", "modelopt"))
    except ImportError as error:
        raise EnvironmentLacks(
            "TF-QNT-013",
            f"Quantization needs a package that does not load: {error.name}",
            numbers={"error": str(error)[:200]},
            why="PTQ runs ModelOpt over transformers and torch.",
            remedies=["pip install 'trtforge[quantize]'"],
        ) from error
    return torch


def load_model(checkpoint: Path, allow_remote_code: bool = False) -> Any:
    """The checkpoint as a transformers model for inference: float32 on a CPU, its own dtype on a GPU.

    Several GPUs hold it together, each some of its layers in turn.

    Raises:
        ForgeError: ``TF-QNT-014`` when transformers refuses it.
    """
    import torch
    from transformers import AutoModelForCausalLM

    on_gpu = torch.cuda.is_available()
    several = on_gpu and torch.cuda.device_count() > 1
    with loading_refused(checkpoint):
        model: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint,
            dtype="auto" if on_gpu else torch.float32,
            local_files_only=True,
            trust_remote_code=allow_remote_code,
            **({"device_map": "balanced"} if several else {}),
        )
    return model.eval().to("cuda") if on_gpu and not several else model.eval()


@contextlib.contextmanager
def loading_refused(checkpoint: Path) -> Iterator[None]:
    """Inside the block, what transformers raises on a checkpoint that it does not know is ``TF-QNT-014``."""
    try:
        yield
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ForgeError(
            "TF-QNT-014",
            "transformers does not load the checkpoint",
            asked=str(checkpoint),
            numbers={"error": str(error)[:300]},
            why="Its architecture or files are not what this version of transformers knows.",
            remedies=["Run intake on the model again", "Set model.allow_remote_code if it brings its own code"],
        ) from error


# --- ModelOpt's configuration -------------------------------------------------------------------


def build_config(plan: QuantPlan, modelopt_version: str) -> dict[str, Any]:
    """ModelOpt's configuration for the plan: formats, group sizes, excludes, head and KV cache merged into one.

    A KV configuration alone would leave the linears with default INT8 quantizers that cannot be exported,
    so it is always merged into the weight configuration (or into one that disables everything).
    """
    import modelopt.torch.quantization as mtq

    if not plan.quantized:
        # a piece of a model may have no linear to quantize; its text is run as often as the others'
        none = plan.row.weight is None
        algorithm = "max" if none else _named_config(plan.row, modelopt_version)["algorithm"]
        config: dict[str, Any] = {"quant_cfg": [{"quantizer_name": "*", "enable": False}], "algorithm": algorithm}
    else:
        config = _grouped_config(plan.row, plan.group, modelopt_version)
        if "lm_head" in plan.quantized and "lm_head" not in plan.others:
            config["quant_cfg"] += _entries_of("lm_head.", config)
        others = {quantizer_prefix(name): named for name, named in plan.others.items()}
        for prefix, (row, group) in others.items():
            config["quant_cfg"] += _entries_of(prefix, _grouped_config(row, group, modelopt_version))
        config["quant_cfg"] += [
            {"quantizer_name": f"{prefix}{kind}_quantizer", "enable": False}
            for prefix in dict.fromkeys(map(quantizer_prefix, plan.excluded))
            for kind in ("weight", "input")
        ]
    if plan.kv.dtype is not None:
        kv_entries = _named_config(plan.kv, modelopt_version)["quant_cfg"]
        with quiet():
            config = mtq.update_quant_cfg_with_kv_cache_quant(config, kv_entries)
    return config


def _named_config(row: FormatRow | KvMode, modelopt_version: str) -> dict[str, Any]:
    import modelopt.torch.quantization as mtq

    entry = modelopt_config(row, modelopt_version)
    if entry.config is not None:
        named: dict[str, Any] = copy.deepcopy(getattr(mtq, entry.config))
        return named | ({"algorithm": {"method": entry.method}} if entry.method else {})
    from modelopt.torch.opt.config_loader import load_config
    from modelopt.torch.quantization.config import QuantizeConfig

    loaded: dict[str, Any] = load_config(entry.preset, schema_type=QuantizeConfig).model_dump(exclude_unset=True)
    return loaded


def _grouped_config(row: FormatRow, group: int | None, modelopt_version: str) -> dict[str, Any]:
    config = _named_config(row, modelopt_version)
    _set_group(config, group)
    return config


def _set_group(config: dict[str, Any], group: int | None) -> None:
    """Give every quantizer in blocks of columns the plan's length; a chain of quantizers is a list."""
    for entry in config["quant_cfg"]:
        chain = entry.get("cfg") or []
        for part in chain if isinstance(chain, list) else [chain]:
            blocks = part.get("block_sizes")
            if group is not None and blocks and blocks.get(-1):
                blocks[-1] = group


def _entries_of(prefix: str, config: dict[str, Any]) -> list[dict[str, Any]]:
    """What gives quantizers of names with a prefix those of a configuration, whatever entries before say of them.

    ModelOpt's presets disable ``*lm_head*``: an untied head that the recipe does not exclude is enabled again by these.
    """
    entries: list[dict[str, Any]] = [
        {"quantizer_name": f"{prefix}{kind}_quantizer", "enable": False} for kind in ("weight", "input")
    ]
    for entry in config["quant_cfg"]:
        name = entry["quantizer_name"]
        if name in ("*weight_quantizer", "*input_quantizer") and entry.get("cfg"):
            entries.append({**copy.deepcopy(entry), "quantizer_name": f"{prefix}{name[1:]}", "enable": True})
    return entries


# --- calibration --------------------------------------------------------------------------------


def forward_loop(
    model: Any,
    batch: np.ndarray,
    plan: QuantPlan,
    settings: dict[str, Any],
    report: Progress,
    search: AwqSearch | None = None,
) -> Callable[[Any], None]:
    """A loop over the prompts that reports every sample; an algorithm may run it several times.

    ``search`` keeps AWQ's losses between batches, and knows those of a run that was killed.
    """
    import torch

    rows = rows_a_pass(settings, batch.shape[1])
    method = _method(settings)
    ids = torch.from_numpy(batch)
    # the head's logits are not needed, unless its own input is to be calibrated
    keep = {} if "lm_head" in plan.quantized else {"logits_to_keep": 1}
    passes = 0

    def loop(calibrated: Any) -> None:
        nonlocal passes
        passes += 1
        report.start(f"calibrating {plan.title}, pass {passes}: {len(ids)} x {ids.shape[1]} tokens", total=len(ids))
        device = next(calibrated.parameters()).device
        kept = search if method == METHOD and passes == SEARCH_PASS else None
        if kept is not None:
            kept.restore(calibrated)
        first = 0 if kept is None else min(kept.batch * rows, len(ids))
        if kept is not None and (kept.batch or kept.layers):
            report.advance(first)
            report.note(f"AWQ's search goes on after {first} of {len(ids)} samples and {kept.layers} layers")
        started, done = time.monotonic(), first
        for begin in range(first, len(ids), rows):
            part = ids[begin : begin + rows].to(device)
            with _advancing(calibrated, len(part), report, kept, begin // rows):
                calibrated(part, use_cache=False, **keep)
            done += len(part)
            if kept is not None:
                kept.keep(calibrated, begin // rows + 1, 0)
            remaining = (time.monotonic() - started) / (done - first) * (len(ids) - done)
            report.note(f"calibration pass {passes}: {done} of {len(ids)} samples, about {remaining:.0f} s left")

    return loop


def rows_a_pass(settings: dict[str, Any], length: int) -> int:
    """Calibration prompts of so many tokens in one forward pass."""
    tokens = _TOKENS_A_PASS_AWQ if "awq" in _method(settings) else _TOKENS_A_PASS
    return max(1, tokens // length)


def passes(settings: dict[str, Any]) -> int:
    """How often the algorithm runs the calibration text through the model."""
    return 2 if _method(settings) in (METHOD, "gptq") else 1


def _method(settings: dict[str, Any]) -> str:
    algorithm = settings.get("algorithm")
    return str(algorithm.get("method", "max")) if isinstance(algorithm, dict) else str(algorithm)


@contextlib.contextmanager
def _advancing(model: Any, samples: int, report: Progress, search: AwqSearch | None, batch: int) -> Iterator[None]:
    """Advance by ``samples`` in all while one forward pass runs, a share after each decoder layer.

    What AWQ has searched of the pass by then is kept.
    """
    found = ((name, m) for name, m in model.named_modules() if name.endswith("layers") and hasattr(m, "__len__"))
    name, layers = next(found, ("", ()))
    if not layers:
        yield
        report.advance(samples)
        return

    def finished(index: int) -> None:
        if search is not None and index >= (search.layers if batch == search.batch else 0):
            search.keep(model, batch, index + 1)
        report.advance(samples / len(layers))

    hooks = [layer.register_forward_hook(lambda *_, index=index: finished(index)) for index, layer in enumerate(layers)]
    try:
        with contextlib.nullcontext() if search is None else search.resumed(model, batch, name):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def check_quantizers(model: Any, plan: QuantPlan) -> None:
    """What ModelOpt enabled is what the plan says, and every calibrated maximum is usable.

    Raises:
        ForgeError: ``TF-QNT-011`` a maximum is missing, infinite, NaN or (of weights) zero.
        RuntimeError: ModelOpt's enabled linears differ from the plan (a bug of this package).
    """
    import torch

    enabled, broken = {name for name, quantized in expert_linears(model).items() if quantized}, {}
    for name, module in model.named_modules():
        quantizer = getattr(module, "weight_quantizer", None)
        if quantizer is not None and quantizer.is_enabled:
            enabled.add(name)
        for kind in _QUANTIZERS:
            part = getattr(module, kind, None)
            amax = getattr(part, "_amax", None)
            if part is not None and part.is_enabled and amax is not None and not bool(torch.isfinite(amax).all()):
                broken[f"{name}.{kind}"] = str(amax.flatten()[:2].tolist())
    if difference := sorted(enabled ^ set(map(in_model, plan.quantized))):
        raise RuntimeError(f"ModelOpt's enabled linears differ from the plan: {difference[:8]}")
    if broken:
        raise _unusable_scales({"count": len(broken), "scales": dict(sorted(broken.items())[:8])})


def _unusable_scales(numbers: dict[str, Any]) -> ForgeError:
    return ForgeError(
        "TF-QNT-011",
        "Calibration gave scales that are not finite",
        numbers=numbers,
        why="The model's activations overflowed or its weights hold NaN; such scales destroy the output.",
        remedies=["Check the checkpoint's weights", "Calibrate with other text or shorter prompts"],
    )


def round_pre_quant_scales(model: Any, dtype: torch.dtype) -> None:
    """Make AWQ's input factors representable in the checkpoint's dtype, and fold the difference into the weights.

    The export stores them in that dtype; rounding them there alone would change every product.
    """
    from modelopt.torch.quantization.model_calib import max_calibrate

    for module in model.modules():
        exact = getattr(getattr(module, "input_quantizer", None), "_pre_quant_scale", None)
        if exact is None or exact.dtype == dtype:
            continue
        rounded = exact.to(dtype).to(exact.dtype)
        module.weight.data.mul_((exact / rounded).view(1, -1))
        exact.copy_(rounded)
        module.weight_quantizer.reset_amax()
        max_calibrate(module, lambda linear: linear.weight_quantizer(linear.weight), distributed_sync=False)


# --- small helpers ------------------------------------------------------------------------------


@contextlib.contextmanager
def timed(timings: dict[str, float], step: str) -> Iterator[None]:
    """Add the block's seconds to ``timings``."""
    started = time.monotonic()
    try:
        yield
    finally:
        timings[step] = timings.get(step, 0.0) + time.monotonic() - started
