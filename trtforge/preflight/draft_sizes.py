"""What drafts beside a model in trtforge's own runtime takes: bytes a token in the shared blocks, and its weights.

Read from the draft's config.json and headers; nothing where there is no draft, or none that can be looked into.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtforge.drafting.record import DRAFTED_METHODS
from trtforge.models.kv import KvSizes, kv_bytes_per_token
from trtforge.models.shape import DTYPE_BYTES

if TYPE_CHECKING:
    from trtforge.preflight.engine import Facts


def draft_token_bytes(facts: Facts) -> int:
    """Bytes of a token in the draft's pools, which are of the model's unquantized type."""
    config = _config(facts)
    layers, heads = _whole(config, "num_hidden_layers"), _whole(config, "num_attention_heads")
    hidden = _whole(config, "hidden_size")
    kv_heads = _whole(config, "num_key_value_heads") or heads
    size = _whole(config, "head_dim") or hidden // max(heads, 1)
    return kv_bytes_per_token(KvSizes(layers, kv_heads, size), facts.recipe.model.dtype)


def draft_weight_bytes(facts: Facts) -> int:
    """Bytes of the draft's weights in the recipe's type, with the tables that a head takes over from its target."""
    files = facts.draft_files if _config(facts) else None
    if files is None:
        return 0
    wide = DTYPE_BYTES[facts.recipe.model.dtype]
    own = sum(info.elements for info in files.tensors.values()) * wide
    model = facts.model
    if facts.recipe.speculation.method != "eagle3" or model is None:
        return own
    names = " ".join(files.tensors)
    missing = sum(table not in names for table in ("embed_tokens", "lm_head"))
    return own + missing * model.vocab * model.hidden * wide


def _config(facts: Facts) -> Mapping[str, Any]:
    recipe, files = facts.recipe, facts.draft_files
    if recipe.speculation.method not in DRAFTED_METHODS or not facts.target.runs_here or files is None:
        return {}
    nested = files.config.get("transformer_layer_config")
    return {**files.config, **(nested if isinstance(nested, Mapping) else {})}


def _whole(config: Mapping[str, Any], name: str) -> int:
    """A size of config.json; 0 where it is none."""
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
