"""The tables are well formed, and agree with the recipe's choices."""

from __future__ import annotations

import typing

from trtforge.recipe.schema import Build, Triton
from trtforge.tables import architecture_table, stack_table
from trtforge.tables.decoders import decoder_table, decoders, gguf_decoders
from trtforge.targets import TARGETS, served_by


def choices(model: type, key: str) -> set[str]:
    return set(typing.get_args(model.model_fields[key].annotation))


def test_stacks_cover_every_target_and_name_no_other() -> None:
    table = stack_table()
    targets = choices(Build, "target")
    assert {target for row in table.rows for target in row.targets} == targets
    for target in targets:
        assert table.newest(target) is not None


def test_layouts_are_the_recipes_layouts() -> None:
    table = stack_table()
    layouts = choices(Triton, "layout")
    assert (
        {layout for row in table.rows for layout in row.layouts}
        == layouts
        == {name for target in TARGETS.values() for name in target.layouts}
    )
    for row in table.rows:
        for layout in row.layouts:
            assert set(served_by(layout)) & set(row.targets)


def test_removed_targets_have_a_replacement_and_an_older_stack() -> None:
    table = stack_table()
    for row in table.rows:
        for removed in row.removed:
            assert removed.target not in row.targets
            assert table.newest(removed.target) is not None
            assert table.newest(removed.replacement) is not None


def test_the_stack_with_the_wheel_server_has_the_numpy_rule() -> None:
    row = stack_table().newest("torch")
    assert row is not None
    assert (row.triton, row.numpy) == ("2.51.0", ">=1.26,<2")


def test_architectures_state_the_same_formats_everywhere() -> None:
    rows = architecture_table().rows
    assert len({frozenset(row.formats) for row in rows}) == 1
    assert all(row.formats["none"] == "yes" for row in rows)


def test_tables_are_read_once() -> None:
    assert stack_table() is stack_table()


def test_counted_types_are_what_transformers_says() -> None:
    """What a type's class has where its config.json says nothing."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    known = {kind: row for kind, row in decoder_table().counted.items() if kind in CONFIG_MAPPING}
    assert len(known) > 20
    for kind, row in known.items():
        made = CONFIG_MAPPING[kind]()
        config = getattr(made, "text_config", made)
        assert config.tie_word_embeddings == row.tied, kind
        assert getattr(config, "attention_bias", row.qkv_bias) == row.qkv_bias, kind
        own = getattr(config, "head_dim", None)
        if not getattr(config, "kv_lora_rank", None):
            assert (own or config.hidden_size // config.num_attention_heads) == (
                row.head_dim or config.hidden_size // config.num_attention_heads
            ), kind
        if row.switched:
            continue
        assert getattr(config, "sliding_window", None) == row.window, kind
        full = [layer for layer, name in enumerate(getattr(config, "layer_types", ())) if name == "full_attention"]
        step = row.full_every or config.num_hidden_layers + 1
        assert not row.window or full == list(range(step - 1, config.num_hidden_layers, step)), kind


def test_decoders_are_what_transformers_says() -> None:
    """model_type, head_dim, windows and positions of each row against the class's own configuration."""
    import transformers

    for name, row in decoders().items():
        config = getattr(transformers, name.replace("ForCausalLM", "Config"))()
        assert config.model_type == row.model_type
        assert config.max_position_embeddings == row.max_positions
        own = None if row.head_dim is None else config.head_dim
        assert own == row.head_dim
        fresh = config.to_dict()
        assert row.bias("mlp", fresh) == bool(fresh.get("mlp_bias", False))
        if row.window == "always":
            assert config.sliding_window == row.default_window
        assert row.bias("qkv", fresh) == bool(fresh.get("attention_bias", row.qkv_bias))
        assert (row.tied, row.norm_eps) == (config.tie_word_embeddings, config.rms_norm_eps)
        assert row.rope_theta == config.rope_parameters["rope_theta"]
        if row.nope is not None:
            assert row.rotates({}, 9) == tuple(map(bool, type(config)(num_hidden_layers=9).no_rope_layers))
            assert row.rotates({row.nope.layers: [0, 1, 1]}, 2) == (False, True)
        if row.factors is not None:
            assert all(getattr(config, key) == 1.0 for key in row.factors.model_dump().values())
        if row.window == "switched":
            size = {} if row.default_window else {"sliding_window": 64}
            told = type(config)(use_sliding_window=True, num_hidden_layers=32, **size)
            windows = row.layer_windows({"use_sliding_window": True, **size}, 32)
            assert told.sliding_window == (row.default_window or 64) == max(windows)
            assert [window > 0 for window in windows] == [kind == "sliding_attention" for kind in told.layer_types]
    assert set(gguf_decoders()) == {"llama", "qwen2", "qwen3"}
