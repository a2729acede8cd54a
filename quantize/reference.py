"""The meaning of a checkpoint, computed plainly: what an engine built from it must reproduce.

Policy: the exported tensors are read by this module's own reader (transformers drops the scales of an
FP8 export in silence and refuses NVFP4) and put de-quantized into the Hugging Face model; hooks then do
to the activations what the format does to them, and the attention sees keys and values as the quantized
cache would return them. Where each fake quantization sits:

* linears: the input, as the format's module says (:meth:`trtforge.formats.base.Format.read`);
* FP8 KV cache: keys after the rotary embedding and values, as they enter the attention, per layer.

Arithmetic is float32 by default with the stored values taken exactly: products of FP8, FP4 and INT4
values with their scales are not rounded to a 16-bit type again, as fused kernels do not round them
either, and the unquantized weights hold bfloat16 values anyway. It is also the fast choice on a CPU
without bfloat16 kernels, where bfloat16 products run five to eight times slower. ``dtype="bfloat16"``
rounds weights and activations as a bfloat16 engine would.

All figures that come from here are "emulated": no matrix unit of a GPU took part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from quantize.corpora import load_tokenizer
from quantize.fused_experts import hook_experts
from quantize.intake.prequantized import scheme_cache
from quantize.plan import read_config, read_quantization_record
from quantize.quiet import quiet
from trtforge.formats import format_of_algorithm
from trtforge.formats.base import Format, InputOperation
from trtforge.formats.kv import rounded
from trtforge.formats.mixing import MIXED
from trtforge.formats.table import KV_LEAVES, carried_kv, formats_by_algorithm, linear_parts
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_object
from trtforge.ground.safetensors_header import weight_files
from trtforge.models.longrope import is_extended

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ATTENTION = "trtforge_reference"
_KV_CACHE = "trtforge_kv_cache"
COMPUTE = {"float32": torch.float32, "bfloat16": torch.bfloat16}

#: keys or values and their scale → as a quantized cache returns them
Kept = Callable[[torch.Tensor, float], torch.Tensor]


class ReferenceModel:
    """A checkpoint's meaning as a callable model.

    Attributes:
        tokenizer: the checkpoint's tokenizer (``tokenizers.Tokenizer``).
        model: the Hugging Face model behind it.
        quant_format: a name of the format table; of mixed precision the names of all, joined by ``+``.
        emulated: whether any quantized operation is emulated (always, for quantized checkpoints).
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, quant_format: str, eos_token_ids: tuple[int, ...]) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.quant_format = quant_format
        self.eos_token_ids = eos_token_ids
        self.emulated = quant_format != "none"

    @torch.inference_mode()
    def logits(self, input_ids: torch.Tensor, last: int = 0) -> torch.Tensor:
        """int64 [S] → float32 [S, V]; row i predicts token i + 1. With ``last`` only that many rows, the last ones."""
        output = self.model(input_ids.view(1, -1).to(self.model.device), use_cache=False, logits_to_keep=last)
        return output.logits[0].float()

    def perturbed_logits(self, input_ids: torch.Tensor, relative: float, seed: int) -> torch.Tensor:
        """As :meth:`logits`, every embedding value changed by a factor 1 + relative x N(0, 1).

        With ``relative`` the rounding error of the model's dtype this shows how far apart two correct
        implementations of the checkpoint may be. int64 [S] → float32 [S, V]; same seed, same values.
        """
        with embeddings_perturbed(self.model, relative, seed):
            return self.logits(input_ids)

    def rounded_logits(self, input_ids: torch.Tensor, dtype: Literal["bfloat16", "float16"]) -> torch.Tensor:
        """As :meth:`logits`, every module's result rounded to ``dtype``: what activations of that type cost.

        Shows how far from this reference a correct engine may be that keeps its activations in ``dtype``.
        int64 [S] → float32 [S, V].
        """
        with results_rounded(self.model, dtype):
            return self.logits(input_ids)

    @torch.inference_mode()
    def generate_greedy(
        self, input_ids: torch.Tensor, max_new: int, done: Callable[[list[int]], bool] | None = None
    ) -> list[int]:
        """The most likely continuation of int64 [S]: at most ``max_new`` ids, ending with an end token if one comes.

        ``done`` is asked after every token whether what was made is enough.
        """
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config)
        step = torch.as_tensor(input_ids).view(1, -1).to(self.model.device)
        made: list[int] = []
        while len(made) < max_new:
            output = self.model(step, past_key_values=cache, use_cache=True, logits_to_keep=1)
            token = int(output.logits[0, -1].argmax())
            made.append(token)
            if token in self.eos_token_ids or (done is not None and done(made)):
                break
            step = torch.tensor([[token]], device=self.model.device)
        return made


@contextlib.contextmanager
def embeddings_perturbed(model: Any, relative: float, seed: int) -> Iterator[None]:
    """Inside the block every embedding value is changed by a factor 1 + relative x N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)

    def perturb(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(output.shape, generator=generator).to(output)
        return output * (1 + relative * noise)

    handle = model.get_input_embeddings().register_forward_hook(perturb)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def results_rounded(model: Any, dtype: Literal["bfloat16", "float16"]) -> Iterator[None]:
    """Inside the block the result of every module within the model is rounded to a type."""
    kind = {"bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]

    def round_result(_: Any, __: Any, output: Any) -> Any:
        if isinstance(output, torch.Tensor) and output.is_floating_point():
            return output.to(kind).to(output.dtype)
        return output

    inner = [module for name, module in model.named_modules() if name]
    handles = [module.register_forward_hook(round_result) for module in inner]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def load_reference_model(
    checkpoint: Path,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    emulate_kv: bool = True,
    allow_remote_code: bool = False,
) -> ReferenceModel:
    """Load a quantized or unquantized checkpoint directory.

    Args:
        checkpoint: Hugging Face layout; quantized ones as ModelOpt exports them.
        dtype: type of weights and activations (see the module's policy).
        emulate_kv: quantize keys and values as the checkpoint's cache format does.
        allow_remote_code: let transformers run Python files of the checkpoint.

    Raises:
        ForgeError: ``TF-QNT-030`` a quantization that this reader does not know, ``TF-QNT-031`` tensors
            are missing or left over.
    """
    checkpoint = Path(checkpoint)
    formats, kept = formats_and_cache(checkpoint)
    weights, inputs, kv_scales = separate(_load_tensors(checkpoint), formats)
    import transformers  # noqa: F401 (before the block: its bars can only be muted once it is there)

    with quiet():
        model = _build_model(checkpoint, weights, COMPUTE[dtype], allow_remote_code)
    hook_inputs(model, inputs)
    if emulate_kv and kept is not None:
        hook_attention(model, kv_scales, kept)
    return ReferenceModel(model, load_tokenizer(checkpoint), formats.name, eos_ids(checkpoint))


def formats_and_cache(checkpoint: Path) -> tuple[Formats, Kept | None]:
    """The formats of a checkpoint's linears, and what its cache does to keys and values; None: nothing.

    Raises:
        ForgeError: ``TF-QNT-030`` a quantization that this reader does not know.
    """
    algorithm, kv_algorithm = read_quantization(checkpoint)
    formats = Formats(checkpoint, algorithm)
    if kv_algorithm is None:
        return formats, None
    if kv_algorithm not in carried_kv():
        raise _unknown_quantization(checkpoint, f"KV cache {kv_algorithm}")
    return formats, rounded(carried_kv()[kv_algorithm])


def read_quantization(checkpoint: Path) -> tuple[str | None, str | None]:
    """``(quant_algo, kv_cache_quant_algo)`` of ``hf_quant_config.json``; (None, None) when unquantized.

    A checkpoint without that file but with ``quantization_config`` in ``config.json`` is asked there.
    """
    section = read_quantization_record(checkpoint)
    if section is not None:
        return section.get("quant_algo"), section.get("kv_cache_quant_algo")
    section = read_config(checkpoint).get("quantization_config") or {}
    algorithm = section.get("quant_algo") or section.get("quant_method")
    return algorithm, scheme_cache(section)


def _unknown_quantization(checkpoint: Path, algorithm: str | None) -> ForgeError:
    return ForgeError(
        "TF-QNT-030",
        f"No reference for quantization {algorithm}",
        asked=str(checkpoint),
        numbers={"known": list(formats_by_algorithm())},
        why="The reference reads ModelOpt's unified exports of these formats only.",
        remedies=["Quantize the unquantized checkpoint with one of `trtforge formats`"],
    )


# --- tensors ------------------------------------------------------------------------------------

Parts = dict[str, torch.Tensor]


def _load_tensors(checkpoint: Path) -> Parts:
    from safetensors.torch import load_file

    tensors: Parts = {}
    for name in weight_files(checkpoint):
        tensors.update(load_file(checkpoint / name))
    return tensors


class Formats:
    """How each quantized linear is stored; ``TF-QNT-030`` an algorithm without a format."""

    def __init__(self, checkpoint: Path, algorithm: str | None) -> None:
        self._checkpoint = checkpoint
        self._layers: dict[str, Format] | None = None
        if algorithm == MIXED:
            section = read_quantization_record(checkpoint) or read_config(checkpoint).get("quantization_config") or {}
            layers = section.get("quantized_layers")
            named = layers.items() if isinstance(layers, dict) else ()
            self._layers = {name: self._named(one.get("quant_algo")) for name, one in named if isinstance(one, dict)}
            self.name = "+".join(sorted({format.row.name for format in self._layers.values()}))
        else:
            self._one = self._named(algorithm)
            self.name = self._one.name

    def of(self, module: str) -> Format:
        """The format of a linear that has scales."""
        if self._layers is None:
            return self._one
        # ModelOpt lists the experts of a layer by the module that holds them
        for name in (module, f"{module.partition('.experts.')[0]}.experts"):
            if name in self._layers:
                return self._layers[name]
        raise _unknown_quantization(self._checkpoint, f"of {module}, which quantized_layers does not list")

    def _named(self, algorithm: str | None) -> Format:
        format = format_of_algorithm(algorithm)
        if format is None:
            raise _unknown_quantization(self._checkpoint, algorithm)
        return format


def separate(tensors: Parts, formats: Formats) -> tuple[Parts, dict[str, InputOperation], dict[str, dict[str, float]]]:
    """Split a checkpoint into de-quantized weights, input operations by module, and KV scales by attention module."""
    parts: dict[str, Parts] = {}
    kv_scales: dict[str, dict[str, float]] = {}
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf in KV_LEAVES:
            kv_scales.setdefault(module.rpartition(".")[0], {})[leaf] = float(tensor)
        elif leaf in linear_parts():
            parts.setdefault(module, {})[leaf] = tensor
    weights = {
        name: tensor for name, tensor in tensors.items() if name.rpartition(".")[2] not in (*linear_parts(), *KV_LEAVES)
    }
    inputs: dict[str, InputOperation] = {}
    for module, found in parts.items():
        found["weight"] = weights[f"{module}.weight"]
        weights[f"{module}.weight"], operation = formats.of(module).read(found)
        if operation is not None:
            inputs[module] = operation
    return weights, inputs, kv_scales


# --- the Hugging Face model ---------------------------------------------------------------------


def _build_model(checkpoint: Path, weights: Parts, compute: torch.dtype, allow_remote_code: bool) -> Any:
    from transformers import AutoModelForCausalLM

    config = reference_config(checkpoint, allow_remote_code)
    model_class: Any = AutoModelForCausalLM._model_mapping[type(config)]
    model, info = model_class.from_pretrained(
        None, config=config, state_dict=weights, dtype=compute, output_loading_info=True, attn_implementation="sdpa"
    )
    refuse_misfits(checkpoint, info)
    return model.eval()


def reference_config(checkpoint: Path, allow_remote_code: bool = False) -> Any:
    """A checkpoint's configuration for a model whose weights are de-quantized."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=allow_remote_code, local_files_only=True)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope" and is_extended(rope, config.max_position_embeddings):
        # as the engine, which cannot change the keys of its cache when a sequence grows over the border
        rope["short_factor"] = rope["long_factor"]
    return config


def refuse_misfits(checkpoint: Path, info: Mapping[str, Any]) -> None:
    """Raise ``TF-QNT-031`` where transformers says that tensors are missing, left over or of another shape."""
    wrong = {key: sorted(info[key])[:8] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]}
    if wrong:
        raise ForgeError(
            "TF-QNT-031",
            "The checkpoint's tensors do not fit its config.json",
            asked=str(checkpoint),
            numbers=wrong,
            why="A tensor that the model needs is missing, or one is there that it does not know.",
            remedies=["Export the checkpoint again", "Check that config.json belongs to these weights"],
        )


def hook_inputs(model: Any, inputs: Mapping[str, InputOperation]) -> None:
    """Put each linear's input operation in front of it; linears that share input and operation share the result."""
    memo: dict[str, Any] = {}

    def hook(operation: InputOperation) -> Callable[[Any, tuple[torch.Tensor, ...]], tuple[torch.Tensor]]:
        if operation.key is None:
            return lambda _, args: (operation.apply(args[0]),)

        def shared(_: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
            # `is`, not equality: query, key and value projections get the very same tensor object
            if memo.get("input") is not args[0] or memo.get("key") != operation.key:
                memo.update(input=args[0], key=operation.key, output=operation.apply(args[0]).to(args[0].dtype))
            return (memo["output"],)

        return shared

    for name, operation in hook_experts(model, inputs).items():
        model.get_submodule(name).register_forward_pre_hook(hook(operation))


def _attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Scaled dot-product attention over keys (rotary embedding applied) and values as a quantized cache returns them.

    Repeating this on keys that a cache already holds changes nothing: values on its grid survive a second rounding.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    kept, k_scale, v_scale = getattr(module, _KV_CACHE)
    key = kept(key, k_scale).to(key.dtype)
    value = kept(value, v_scale).to(value.dtype)
    return sdpa_attention_forward(module, query, key, value, *args, **kwargs)


def hook_attention(
    model: Any,
    kv_scales: Mapping[str, Mapping[str, float]],
    kept: Kept,
) -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_ATTENTION, sdpa_mask)
    for name, module in model.named_modules():
        if name.endswith("self_attn"):
            # a cast-only cache stores no scales: they are one by definition
            scales = kv_scales.get(name, {})
            setattr(module, _KV_CACHE, (kept, scales.get("k_scale", 1.0), scales.get("v_scale", 1.0)))
    model.set_attn_implementation(_ATTENTION)


def eos_ids(checkpoint: Path) -> tuple[int, ...]:
    path = checkpoint / "generation_config.json"
    generation = read_json_object(path) if path.is_file() else {}
    ids = generation.get("eos_token_id", read_config(checkpoint).get("eos_token_id"))
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (int(ids),)
