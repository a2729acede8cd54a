"""An EAGLE drafter in TensorRT-LLM's checkpoint: the networks that draft, beside the target model.

Read from a directory in the layout of the EAGLE-1 and EAGLE-2 releases (they share it; the tree is the server's
business): ``config.json`` of a Llama with one layer or a few, and safetensors with ``embed_tokens``, ``fc`` over
[embedding, hidden state] and ``layers.N``, whose first has no norm before its attention. Pickles are refused.

TensorRT-LLM unrolls the depth of the tree: ``eagle_nets.0`` … each hold the whole drafter and the target's output
head, once more on disk (TensorRT keeps equal tables once). Everything below ``eagle_nets`` stays in the model's type.
The drafter's layers share what the engine has once: the rotary table and the KV pool of the target's shape.

Sources: https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/models/eagle/model.py and config.py,
https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/models/llama/model.py,
https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/cpp/tensorrt_llm/runtime/gptJsonConfig.cpp (KV heads and size of a
head are the target's for every layer), https://github.com/SafeAILab/EAGLE (the layout).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from builder.graphs.config import read_config
from builder.targets.trtllm.medusa import DTYPES, converted, drafter_class, narrow
from builder.targets.trtllm.ranks import Rank, kv_heads_of
from builder.targets.trtllm.source import BITS, Array, Checkpoint
from builder.targets.trtllm.tensors import Tensor
from trtforge.drafting.kinds import is_eagle_3
from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import TensorInfo, read_headers
from trtforge.models.record import Model, projections
from trtforge.recipe.schema import Build, Speculation

ARCHITECTURE = "EagleForCausalLM"
#: nodes, depth and most inner nodes of a level of mc_sim_7b_63, which the server drafts when it is given no tree
DEFAULT_NODES, DEFAULT_DEPTH, DEFAULT_INNER = 63, 4, 10
#: buffers that older exports hold beside the weights
_BUFFER = re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
Span = tuple[int, int]


@dataclass(frozen=True)
class EagleDrafter:
    """Attributes:
    net: sizes of the drafter.
    layers: ``num_eagle_layers``, the depth of the tree.
    max_draft_len: nodes of the tree.
    max_inner: inner nodes of its widest level.
    """

    directory: Path
    net: Model
    layers: int
    max_draft_len: int
    max_inner: int
    headers: Mapping[str, TensorInfo]

    #: modules that are not quantized
    excluded = "eagle_nets*"

    @classmethod
    def open(
        cls, directory: Path | None, *, target: Checkpoint, speculation: Speculation, max_draft_len: int, tp: int = 1
    ) -> EagleDrafter:
        """Read the drafter's configuration and headers and hold them against the target and the tree.

        Args:
            tp: ranks that share each linear's rows or columns.

        Raises:
            ForgeError: ``TF-BLD-067`` no such directory, another layout, tensors or sizes that do not fit the
                target, a tree that does not fit; and ``TF-SRC-028`` for pickles.
        """
        if directory is None or not (directory / "config.json").is_file():
            raise _refuse(
                "EAGLE's drafter is read from a directory with config.json and safetensors",
                directory,
                "TensorRT-LLM's checkpoint holds target and drafter together.",
                "speculation.draft: PATH of the drafter, relative to the recipe",
            )
        headers = read_headers(directory)
        _refuse_eagle_3(directory, headers)
        try:
            net = read_config(directory)
        except ForgeError as error:
            raise _refuse(
                f"config.json of the drafter cannot be used: {error.message}",
                directory,
                "TensorRT-LLM builds EAGLE's drafter from its Llama layers.",
                "a drafter of a Llama, with config.json as its publisher has it",
            ) from error
        depth, inner = _tree(speculation, max_draft_len)
        result = cls(directory, net, depth, max_draft_len, inner, headers)
        result._check_sizes(target, tp)
        result._check_tensors()
        return result

    @property
    def attention_bias(self) -> bool:
        """Whether the linears of the attention have biases: their files decide, the releases have no key for it."""
        return "layers.0.self_attn.q_proj.bias" in self.headers

    @property
    def mlp_bias(self) -> bool:
        return "layers.0.mlp.gate_proj.bias" in self.headers

    def _check_sizes(self, target: Checkpoint, tp: int) -> None:
        own, theirs, pool = self.net, target.config, "Both keep their keys and values in one pool."
        for name, found, wanted, why in (
            ("hidden_size", own.hidden, theirs.hidden, "The drafter reads the target's hidden states."),
            ("vocab_size", own.vocab, theirs.vocab, "It drafts through the target's output head."),
            ("head_size", own.head_size, theirs.head_size, pool),
            ("num_key_value_heads", own.kv_heads, theirs.kv_heads, pool),
            ("rope", _rotation(own), _rotation(theirs), "The engine has one rotary table, the target's."),
        ):
            if found != wanted:
                raise _refuse(
                    f"The drafter does not fit the target: {name} is {found}, the target's {wanted}",
                    self.directory,
                    why,
                    "speculation.draft: a drafter that was trained for this model",
                )
        faults = [
            f"{number} {what}"
            for what, number in (
                ("heads", own.heads),
                ("MLP rows", own.ffn),
                ("rows of fc", own.hidden),
            )
            if number % tp
        ]
        if faults:
            raise _refuse(
                f"The drafter does not divide over {tp} ranks: {', '.join(faults)}",
                self.directory,
                "Each rank holds whole heads and the same number of rows.",
                "build.parallel.tp: 1",
            )

    def _check_tensors(self) -> None:
        wanted = _layout(self.net, self.attention_bias, self.mlp_bias)
        optional = {"fc.bias"}  # not all releases have one
        wrong = {
            name: list(self.headers[name].shape) if name in self.headers else None
            for name, shape in wanted.items()
            if (name in self.headers or name not in optional)
            and (name not in self.headers or self.headers[name].shape != shape or self.headers[name].dtype not in BITS)
        }
        if wrong:
            name, shape = next(iter(wrong.items()))
            found = f"is {shape}, not {list(wanted[name])}" if shape is not None else "is missing"
            if shape == list(wanted[name]):
                found = f"is stored as {self.headers[name].dtype}"
            raise _refuse(
                f"{len(wrong)} tensors of the drafter do not fit its config.json: {name} {found}",
                self.directory,
                "TensorRT-LLM's drafter has these tensors and no others.",
                "speculation.draft: a complete drafter in the layout of EAGLE-1 and EAGLE-2",
            )
        more = sorted(name for name in set(self.headers) - set(wanted) if not _BUFFER.fullmatch(name))
        if more:
            raise _refuse(
                f"{len(more)} tensors of the drafter have no place in TensorRT-LLM's: {', '.join(more[:4])}",
                self.directory,
                "Left out, the drafter would compute something else than it was trained for.",
                "speculation.draft: a drafter in the layout of EAGLE-1 and EAGLE-2",
            )

    def config(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """What it adds to the target's config.json."""
        net = self.net
        same = (
            *("dtype", "logits_dtype", "vocab_size", "hidden_act", "position_embedding_type", "rotary_base"),
            *("rotary_scaling", "mapping", "use_parallel_embedding", "embedding_sharding_dim"),
        )
        return {
            "architecture": ARCHITECTURE,
            "max_draft_len": self.max_draft_len,
            "num_eagle_layers": self.layers,
            "max_non_leaves_per_layer": self.max_inner,
            "eagle_net_config": {
                **{name: base[name] for name in same},
                "architecture": drafter_class(base["architecture"]),
                "hidden_size": net.hidden,
                "intermediate_size": net.ffn,
                "num_hidden_layers": net.layers,
                "num_attention_heads": net.heads,
                "num_key_value_heads": net.kv_heads,
                "head_size": net.head_size,
                "norm_epsilon": net.norm_eps,
                "max_position_embeddings": net.max_positions,
                "attn_bias": self.attention_bias,
                "mlp_bias": self.mlp_bias,
                "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
            },
        }

    def tensors(self, rank: Rank, target: Checkpoint) -> Iterator[Tensor]:
        """The drafter's tensors of a rank, once for each level of the tree."""
        for level in range(self.layers):
            net = f"eagle_nets.{level}"
            yield from self._drafter(f"{net}.drafter", rank, target)
            yield self._head(f"{net}.lm_head.weight", rank, target)

    def _drafter(self, out: str, rank: Rank, target: Checkpoint) -> Iterator[Tensor]:
        net = self.net
        share = -(-net.vocab // rank.tp)
        dtype = DTYPES[target.config.dtype]

        def rows(count: int) -> Span:
            return rank.tp_rank * count // rank.tp, (rank.tp_rank + 1) * count // rank.tp

        def put(name: str, parts: Sequence[tuple[str, Span]], columns: Span | None = None) -> Tensor:
            return self._stack(f"{out}.{name}", parts, columns, dtype)

        def linear(name: str, parts: Sequence[tuple[str, Span]], columns: Span | None, bias: bool) -> Iterator[Tensor]:
            yield put(f"{name}.weight", [(f"{module}.weight", span) for module, span in parts], columns)
            if bias:
                yield put(f"{name}.bias", [(f"{module}.bias", span) for module, span in parts])

        vocabulary = (rank.tp_rank * share, (rank.tp_rank + 1) * share)
        yield put("vocab_embedding.weight", [("embed_tokens.weight", vocabulary)])
        yield put("fc.weight", [("fc.weight", rows(net.hidden))])
        # TensorRT-LLM's fc always has a bias; a drafter that was trained without one has zeros
        begin, end = rows(net.hidden)
        stored = "fc.bias" in self.headers
        yield put("fc.bias", [("fc.bias", (begin, end))]) if stored else _zeros(f"{out}.fc.bias", dtype, end - begin)
        queries = rows(net.heads)
        keys = kv_heads_of(net.kv_heads, rank.tp, rank.tp_rank)
        size, ffn, all_rows = net.head_size, rows(net.ffn), (0, net.hidden)
        q, kv = (queries[0] * size, queries[1] * size), (keys.start * size, keys.stop * size)
        for layer in range(net.layers):
            here = there = f"layers.{layer}"
            attn = f"{there}.self_attn"
            if layer:
                yield put(f"{here}.input_layernorm.weight", [(f"{there}.input_layernorm.weight", all_rows)])
            yield put(f"{here}.post_layernorm.weight", [(f"{there}.post_attention_layernorm.weight", all_rows)])
            fused = [(f"{attn}.q_proj", q), (f"{attn}.k_proj", kv), (f"{attn}.v_proj", kv)]
            yield from linear(f"{here}.attention.qkv", fused, None, self.attention_bias)
            yield from linear(f"{here}.attention.dense", [(f"{attn}.o_proj", all_rows)], q, self.attention_bias)
            yield from linear(f"{here}.mlp.fc", [(f"{there}.mlp.gate_proj", ffn)], None, self.mlp_bias)
            yield from linear(f"{here}.mlp.gate", [(f"{there}.mlp.up_proj", ffn)], None, self.mlp_bias)
            yield from linear(f"{here}.mlp.proj", [(f"{there}.mlp.down_proj", all_rows)], ffn, self.mlp_bias)

    def _stack(self, out: str, parts: Sequence[tuple[str, Span]], columns: Span | None, dtype: str) -> Tensor:
        """Rows of one or several tensors, one below the other."""
        pieces: list[Callable[[], Iterator[Array]]] = []
        for name, span in parts:
            info = self.headers[name]
            values = np.memmap(self.directory / info.file, BITS[info.dtype], "r", info.offset, info.shape)
            pieces.append(converted(values, span, info.dtype, dtype, columns))
        tail = self.headers[parts[0][0]].shape[1:]
        shape = (sum(end - begin for _, (begin, end) in parts), *((columns[1] - columns[0],) if columns else tail))
        return Tensor(out, dtype, shape, lambda: (band for piece in pieces for band in piece()))

    def _head(self, out: str, rank: Rank, target: Checkpoint) -> Tensor:
        name = "lm_head.weight" if target.has("lm_head.weight") else "model.embed_tokens.weight"
        values, stored, dtype = target.read(name), target.headers[name].dtype, DTYPES[target.config.dtype]
        share = -(-target.config.vocab // rank.tp)
        span = (rank.tp_rank * share, (rank.tp_rank + 1) * share)
        return Tensor(out, dtype, (share, *values.shape[1:]), converted(values, span, stored, dtype))


def refuse_engine(target: Checkpoint, build: Build) -> None:
    """Refuse what an engine with EAGLE's drafter cannot have.

    Raises:
        ForgeError: ``TF-BLD-037``.
    """
    architecture, parallel, kv, trtllm = target.config.architecture, build.parallel, target.kv_algorithm, build.trtllm
    # whether it holds, what it is, how it was asked for, why it cannot be, and what would work
    reasons: tuple[tuple[bool, str, str, str, str], ...] = (
        (
            drafter_class(architecture) is None,
            f"beside a model of {architecture}",
            f"model: {architecture}",
            "TensorRT-LLM's EAGLE is its Llama with a drafter; other models have other norms and biases.",
            "speculation.method: lookahead",
        ),
        (
            parallel.pp != 1,
            f"over pp {parallel.pp}",
            f"build.parallel.pp: {parallel.pp}",
            "TensorRT-LLM's drafter lies on every rank and has no pipeline.",
            f"build.parallel: {{tp: {parallel.tp * parallel.pp}, pp: 1}}",
        ),
        (
            kv is not None,
            f"with KV cache {kv}",
            f"quantize.kv_cache: {str(kv).lower()}",
            "Target and drafter share one KV pool, read by paged context attention; over an FP8 pool that is FP8 "
            "attention, which a drafter in 16 bits has not.",
            "quantize.kv_cache: none",
        ),
        (
            trtllm.fp8_context_attention,
            "with FP8 context attention",
            "build.trtllm.fp8_context_attention: true",
            "TensorRT-LLM asserts FP8 linears in every attention layer; the drafter's are of 16 bits.",
            "build.trtllm.fp8_context_attention: false",
        ),
        (
            not trtllm.paged_context_attention,
            "without paged context attention",
            "build.trtllm.paged_context_attention: false",
            "Accepted tokens go through the drafter as a chunk of context; trtllm-build turns it on by itself.",
            "build.trtllm.paged_context_attention: true",
        ),
        (
            target.quantized("lm_head"),
            "beside a quantized output head",
            "quantize.exclude",
            "The drafter's networks use the target's head in the model's type.",
            "quantize.exclude: [lm_head]",
        ),
    )
    faults = [fault for holds, *fault in reasons if holds]
    if faults:
        raise ForgeError(
            "TF-BLD-037",
            f"EAGLE's drafter cannot be put into an engine {' and '.join(what for what, _, _, _ in faults)}",
            asked=f"speculation.method: eagle, {', '.join(asked for _, asked, _, _ in faults)}",
            why=" ".join(why for _, _, why, _ in faults),
            remedies=[*(remedy for _, _, _, remedy in faults), "speculation.method: none"],
        )


def _layout(net: Model, attention_bias: bool, mlp_bias: bool) -> dict[str, tuple[int, ...]]:
    """The tensors of such a drafter and their shapes."""
    width = net.hidden
    biased = replace(net, fused=False, attention_bias=attention_bias, o_bias=attention_bias, mlp_bias=mlp_bias)
    linears = projections(biased)
    wanted: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (net.vocab, width),
        "fc.weight": (width, 2 * width),
        "fc.bias": (width,),
    }
    for layer in range(net.layers):
        name = f"layers.{layer}"
        if layer:
            wanted[f"{name}.input_layernorm.weight"] = (width,)
        wanted[f"{name}.post_attention_layernorm.weight"] = (width,)
        for linear in linears:
            wanted[f"{name}.{linear.path}.weight"] = (linear.rows, linear.columns)
            if linear.bias:
                wanted[f"{name}.{linear.path}.bias"] = (linear.rows,)
    return wanted


def _rotation(config: Model) -> dict[str, Any]:
    """What turns queries and keys; the number of trained positions does not."""
    leave_out = ("max_position_embeddings",)
    return {key: value for key, value in config.rope.items() if key not in leave_out and value is not None}


def _tree(speculation: Speculation, max_draft_len: int) -> tuple[int, int]:
    """Depth and most inner nodes of a level, of the recipe's tree or of the server's default.

    Raises:
        ForgeError: ``TF-BLD-067`` the tree's depth is not the number of layers, or it has more nodes than the
            engine verifies.
    """
    if speculation.choices:
        paths = speculation.choices
        depth, nodes, named = max(map(len, paths)), len(paths), "speculation.choices"
        parents = Counter(len(parent) for parent in {path[:-1] for path in paths} if parent)
        inner = max(parents.values(), default=1)
    else:
        depth, nodes, inner, named = DEFAULT_DEPTH, DEFAULT_NODES, DEFAULT_INNER, "the server's default tree"
    if speculation.heads not in (None, depth) or nodes > max_draft_len:
        raise ForgeError(
            "TF-BLD-067",
            f"{named} is {depth} deep and has {nodes} nodes; the engine would have {speculation.heads or depth} "
            f"levels and verify {max_draft_len}",
            asked=f"speculation: {{heads: {speculation.heads}, max_draft_len: {max_draft_len}}}",
            numbers={"depth": depth, "nodes": nodes, "heads": speculation.heads, "max_draft_len": max_draft_len},
            why="TensorRT-LLM drafts one level of the tree a network, and the deepest path must be as long.",
            remedies=[f"speculation: {{heads: {depth}, max_draft_len: {nodes}}}", "speculation.choices: another tree"],
        )
    return depth, inner


def _refuse_eagle_3(directory: Path, headers: Mapping[str, TensorInfo]) -> None:
    if is_eagle_3(headers):
        raise _refuse(
            "The drafter is an EAGLE-3 one",
            directory,
            "EAGLE-3 reads hidden states of several layers; TensorRT-LLM has it on its PyTorch backend only.",
            "build.target: trtllm-llmapi with speculation.method: eagle3",
        )


def _zeros(name: str, dtype: str, count: int) -> Tensor:
    values = narrow(np.zeros(count, dtype=np.float32), dtype)
    return Tensor(name, dtype, (count,), lambda: iter((values,)))


def _refuse(message: str, directory: Path | None, why: str, remedy: str) -> ForgeError:
    return ForgeError("TF-BLD-067", message, asked=f"speculation.draft: {directory}", why=why, remedies=[remedy])
