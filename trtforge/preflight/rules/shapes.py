"""K5, K9, K16, K18: what graph and build refuse from the recipe and config.json alone, said before quantization.

The figures are those of the graph builder and of the plugins; the tests hold them against both.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.ground.paths import real_path
from trtforge.models.kv import stage_layers
from trtforge.models.shape import linears, matches
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.features import weight_format
from trtforge.preflight.remedies import by_hand
from trtforge.preflight.retarget import to_target, to_targets
from trtforge.preflight.rules.heads import HEAD_SIZES, head_taken, is_compiled
from trtforge.targets import TARGETS

#: values of ``layer_types`` that the graph has attention for, one for the whole model
LAYER_TYPES = ("full_attention", "sliding_attention")


@rule("TF-K5-006", "heads of a size that the attention does not take", needs=("model",), waivable=False)
def head_size_taken(facts: Facts) -> Iterator[Violation]:
    """The graph's attention, and the kernels behind it, are written for a range of head sizes."""
    size, target = facts.require_model().head_size, facts.recipe.build.target
    multiple = facts.target.head_multiple
    if multiple is None or head_taken(size, target):
        return
    low, high = HEAD_SIZES
    others = [name for name in TARGETS if head_taken(size, name) or TARGETS[name].llm_api]
    yield Violation(
        f"heads of {size} values; target {target} takes {low} to {high} in steps of {multiple}",
        f"config.json of {facts.recipe.model.source}: head size {size}",
        {"head_size": size, "smallest": low, "largest": high, "multiple": multiple},
        [
            *by_hand(f"a checkpoint with heads of {low} to {high} values"),
            *(to_target(facts, name) for name in others if is_compiled(facts, name, size)),
        ],
    )


@rule("TF-K18-006", "layers with attention that differs from layer to layer", needs=("files",), waivable=False)
def layers_alike(facts: Facts) -> Iterator[Violation]:
    """The graph gives every layer the same attention; a layer with another window would be computed wrongly."""
    given = facts.files.config.get("layer_types") if facts.files is not None else None
    if not isinstance(given, list) or facts.target.llm_api:
        return
    kinds = sorted({str(kind) for kind in given})
    if len(kinds) > 1 or set(kinds) - set(LAYER_TYPES):
        yield Violation(
            f"layer_types has {', '.join(kinds)}",
            f"config.json of {facts.recipe.model.source}: layer_types",
            {kind: given.count(kind) for kind in kinds},
            [*by_hand("a checkpoint whose layers are alike"), *to_targets(facts, lambda target: target.llm_api)],
        )


@rule("TF-K9-013", "a timing cache that is not there", waivable=False)
def timing_cache_there(facts: Facts) -> Iterator[Violation]:
    """A build reads the file that the recipe names; a first build has none yet and writes model.cache."""
    named = facts.recipe.build.trtllm.timing_cache
    if named is None or not facts.target.trtllm_build:
        return
    root = real_path(facts.directory)
    path = real_path(root / named)
    if not path.is_relative_to(root) or not path.is_file():
        what = "lies outside the recipe's folder" if not path.is_relative_to(root) else "does not exist"
        yield Violation(
            f"the timing cache {named} {what}",
            f"build.trtllm.timing_cache: {named}",
            {},
            ["remove build.trtllm.timing_cache", *by_hand("copy model.cache of an earlier build to that place")],
        )


@rule("TF-K9-014", "max_seq_len over what the graph has positions for", needs=("model",), waivable=False)
def graph_has_positions(facts: Facts) -> Iterator[Violation]:
    """An engine of the graph has the positions of config.json's max_position_embeddings; the build refuses more."""
    model, asked = facts.require_model(), facts.recipe.build.limits.max_seq_len
    positions = model.max_positions
    # TF-K9-001 names what is over the model's context, unless the recipe set it aside
    unnamed = asked <= model.usable_positions or "TF-K9-001" in facts.recipe.waive
    if facts.target.from_graph and asked > positions and unnamed:
        yield Violation(
            f"max_seq_len {asked} is over the {positions} positions of config.json",
            f"build.limits.max_seq_len: {asked}",
            {"max_seq_len": asked, "max_position_embeddings": positions},
            [
                f"build.limits.max_seq_len: {positions}",
                *by_hand("max_position_embeddings in config.json, where the rope scaling reaches further"),
            ],
        )


@rule("TF-K16-009", "pipeline stages that leave different layers unquantized", needs=("model",), waivable=False)
def stages_exclude_alike(facts: Facts) -> Iterator[Violation]:
    """All ranks of TensorRT-LLM read one config.json, in which a layer is named by its place in its own stage."""
    model, recipe = facts.require_model(), facts.recipe
    pp, exclude = recipe.build.parallel.pp, recipe.quantize.unquantized
    if not facts.target.trtllm_build or not 1 < pp <= model.layers or weight_format(facts) == "none":
        return
    if model.prequantized is not None:
        return  # what is left out is the checkpoint's choice, and its headers say which
    kinds = [linear for linear in linears(model) if linear.kind != "lm_head"]
    plain = [
        {
            f"{place}.{linear.kind}"
            for place, layer in enumerate(stage)
            for linear in kinds
            if any(matches(linear.names[layer], pattern) for pattern in exclude)
        }
        for stage in stage_layers(model.layers, pp)
    ]
    if any(stage != plain[0] for stage in plain):
        yield Violation(
            f"the {pp} stages exclude {', '.join(str(len(stage)) for stage in plain)} linears, not the same ones",
            facts.asked("quantize.exclude", "build.parallel.pp"),
            {"excluded_by_stage": [len(stage) for stage in plain]},
            ["build.parallel.pp: 1", "quantize.exclude: [lm_head]"],
        )
