"""K6, K7: a checkpoint that arrives quantized, judged by its description and its scales; no weight is loaded."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.formats.table import load_formats, one_of
from trtforge.models.shape import matches
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import by_hand
from trtforge.preflight.sources import SourceFiles, is_bad_scale
from trtforge.rules.sources import thread

_KEY_SCALES, _VALUE_SCALES = ("k_scale", "k_proj.output_scale"), ("v_scale", "v_proj.output_scale")
_KV_SCALES = (*_KEY_SCALES, *_VALUE_SCALES)
_WEIGHT_TYPES = ("F8_E4M3", "U8", "F4", "I8")


def _described(facts: Facts) -> SourceFiles | None:
    """The checkpoint's folder, where a description says how it is quantized."""
    return facts.files if facts.files is not None and facts.files.quantization.get("quant_algo") else None


def _modules(files: SourceFiles) -> dict[str, str]:
    """Linear's name → type of its stored weight."""
    return files.once(
        "modules",
        lambda: {
            name.removesuffix(".weight"): info.dtype
            for name, info in files.tensors.items()
            if name.endswith(".weight") and len(info.shape) == 2 and not name.endswith("embed_tokens.weight")
        },
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _asked(facts: Facts) -> str:
    return f"model.source: {facts.recipe.model.source}"


_AGAIN = "export it again with this recipe's quantize section, from the unquantized checkpoint"


def _against_list(files: SourceFiles, *, quantized: bool) -> tuple[list[str], list[str]]:
    """Modules that are quantized and on the exclude list, or neither, and the list's patterns."""
    given = files.quantization.get("exclude_modules") or files.quantization.get("ignore")
    patterns = [str(item) for item in given] if isinstance(given, list) else []
    found = files.once(
        f"against the list, quantized: {quantized}",
        lambda: [
            name
            for name, dtype in _modules(files).items()
            if (dtype in _WEIGHT_TYPES) == quantized
            and any(matches(name, pattern) for pattern in patterns) == quantized
        ],
    )
    return found, patterns


@rule(
    "TF-K6-005", "a module that the checkpoint's exclude list names is quantized", thread("TL#1733"), needs=("files",)
)
def excluded_are_plain(facts: Facts) -> Iterator[Violation]:
    """An engine that believes the list reads packed bytes as plain weights."""
    files = _described(facts)
    bad, patterns = _against_list(files, quantized=True) if files is not None else ([], [])
    if bad:
        yield Violation(
            f"{len(bad)} excluded modules are quantized: {_some(bad)}",
            _asked(facts),
            {"modules": bad[:16], "exclude_modules": patterns},
            by_hand("remove the names from exclude_modules in hf_quant_config.json", _AGAIN),
        )


@rule(
    "TF-K6-006", "a module outside the checkpoint's exclude list is not quantized", thread("TL#855"), needs=("files",)
)
def others_are_quantized(facts: Facts) -> Iterator[Violation]:
    """An engine that believes the list looks for scales that are not there, or reads plain weights as packed ones."""
    files = _described(facts)
    plain, patterns = _against_list(files, quantized=False) if files is not None else ([], [])
    if plain:
        yield Violation(
            f"{len(plain)} modules are not quantized and not excluded: {_some(plain)}",
            _asked(facts),
            {"modules": plain[:16], "exclude_modules": patterns},
            by_hand(f"add {_some(plain)} to exclude_modules in hf_quant_config.json", _AGAIN),
        )


def _layers_without_kv_scales(files: SourceFiles) -> tuple[list[str], list[str]]:
    """All layers with attention, and those whose keys or values have no scale."""
    layers = sorted({name.split(".self_attn.")[0] for name in files.tensors if ".self_attn." in name})
    scaled = {
        (name.split(".self_attn.")[0], kind)
        for name in files.tensors
        for kind, endings in (("key", _KEY_SCALES), ("value", _VALUE_SCALES))
        if name.endswith(endings)
    }
    return layers, [layer for layer in layers if not {(layer, "key"), (layer, "value")} <= scaled]


def _without(files: SourceFiles, scale: str) -> list[str]:
    """The quantized linears that have no such scale."""
    return files.once(
        f"without {scale}",
        lambda: [
            name
            for name, dtype in _modules(files).items()
            if dtype in _WEIGHT_TYPES and f"{name}.{scale}" not in files.tensors
        ],
    )


@rule("TF-K7-001", "KV scales are missing", thread("MO#20"), needs=("files",))
def kv_scales_exist(facts: Facts) -> Iterator[Violation]:
    """The description promises an FP8 cache; without scales every engine takes 1 and large keys saturate."""
    files = _described(facts)
    if files is None or files.quantization.get("kv_cache_quant_algo") is None:
        return
    layers, missing = files.once("layers without KV scales", lambda: _layers_without_kv_scales(files))
    if missing:
        yield Violation(
            f"{len(missing)} of {len(layers)} layers have no KV scales",
            _asked(facts),
            {
                "layers": len(layers),
                "missing": len(missing),
                "kv_cache_quant_algo": str(files.quantization["kv_cache_quant_algo"]),
            },
            by_hand(_AGAIN, "set kv_cache_quant_algo to null in hf_quant_config.json and serve a 16-bit cache"),
        )


@rule("TF-K7-002", "every KV scale is 1", thread("MO#20"), severity="warning", needs=("files",))
def kv_scales_calibrated(facts: Facts) -> Iterator[Violation]:
    """Scales of exactly 1 mean that calibration never reached the cache (or was not asked to): values above 448
    saturate."""
    files = _described(facts)
    if files is None or not any(files.quantization.get(key) for key in ("kv_cache_quant_algo", "kv_cache_scheme")):
        return
    scales = files.once("KV scales", lambda: dict(files.scalars(_KV_SCALES)))
    if len(scales) > 1 and all(value == 1.0 for value in scales.values()):
        yield Violation(
            f"all {len(scales)} KV scales are 1.0",
            _asked(facts),
            {"scales": len(scales)},
            by_hand(
                f"calibrate the cache: quantize.kv_cache: {load_formats().first_choice.kv_cache} from the unquantized "
                "checkpoint",
                "set kv_cache_quant_algo to null in hf_quant_config.json and serve a 16-bit cache",
            ),
        )


@rule("TF-K7-003", "quantized weights without their scales", thread("MO#500"), needs=("files",), waivable=False)
def weights_have_scales(facts: Facts) -> Iterator[Violation]:
    """A weight of 8 or 4 bits means nothing without its scale; engines take 1 or refuse to load."""
    files = _described(facts)
    bare = _without(files, "weight_scale") if files is not None else []
    if bare:
        yield Violation(
            f"{len(bare)} quantized weights have no weight_scale: {_some(bare)}",
            _asked(facts),
            {"modules": bare[:16]},
            by_hand(_AGAIN, "copy the checkpoint again, all of its files"),
        )


@rule("TF-K7-004", "activation scales are missing", thread("MO#500"), needs=("files",))
def activations_have_scales(facts: Facts) -> Iterator[Violation]:
    """Without a calibration loop ModelOpt has no activation ranges; engines take 1, and activations saturate or
    underflow."""
    files = _described(facts)
    rows = load_formats().formats
    static = [row.algorithm for row in rows if "input_scale" in row.tensors]
    if files is None or files.quantization.get("quant_algo") not in static:
        return
    bare = _without(files, "input_scale")
    weight_only = [row.name for row in rows if row.weight is not None and row.activation is None]
    if bare:
        yield Violation(
            f"{len(bare)} linears have no input_scale: {_some(bare)}",
            _asked(facts),
            {"modules": bare[:16], "quant_algo": str(files.quantization["quant_algo"])},
            by_hand(
                "quantize the unquantized checkpoint with calibration (quantize.format in this recipe)",
                f"a checkpoint in a weight-only format ({one_of(weight_only)})",
            ),
        )


@rule("TF-K7-005", "scales that no calibration gives", thread("MO#153"), needs=("files",))
def scales_are_sane(facts: Facts) -> Iterator[Violation]:
    """A scale of zero, below it, infinite or no number turns the whole tensor into zeros or NaN; experts that the
    calibration never routed to are the usual cause."""
    files = _described(facts)
    if files is None:
        return
    every = ("weight_scale", "weight_scale_2", "input_scale", *_KV_SCALES)
    bad = files.once("bad scales", lambda: {name: value for name, value in files.scalars(every) if is_bad_scale(value)})
    if bad:
        names = list(bad)
        yield Violation(
            f"{len(bad)} scales are zero, negative or no number: {_some(names)}",
            _asked(facts),
            {"scales": {name: str(bad[name]) for name in names[:16]}},
            by_hand(
                "calibrate the unquantized checkpoint on more samples, so that every expert is used: "
                "quantize.calibration.samples: 512",
                f"exclude the modules there: quantize.exclude with {names[0].rsplit('.', 1)[0]}",
            ),
        )


@rule(
    "TF-K7-006",
    "a KV cache format that the checkpoint has no scales for",
    thread("TL#1676"),
    needs=("model",),
    severity="warning",
)
def kv_as_calibrated(facts: Facts) -> Iterator[Violation]:
    """The checkpoint was calibrated for another cache; its keys and values have no range for this one."""
    model = facts.require_model()
    stored, mode = model.prequantized_kv_cache, facts.recipe.quantize.kv_cache
    if model.prequantized and stored is None and facts.recipe.build.trtllm.fp8_context_attention and mode == "none":
        yield Violation(
            f"the {model.prequantized} checkpoint carries no KV scales, FP8 context attention needs an FP8 cache",
            f"build.trtllm.fp8_context_attention: true, {_asked(facts)}",
            {"stored": model.prequantized, "stored_kv_cache": stored},
            [
                "build.trtllm.fp8_context_attention: false",
                *by_hand("a checkpoint exported with a calibrated FP8 KV cache"),
            ],
        )
