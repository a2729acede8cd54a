"""Inputs of TensorRT-LLM's models that this runtime cannot honour, each with the value that asks for nothing.

They are declared, so that a client that always sends them is understood, and refused by name where they ask for
something; Triton would only say "unexpected inference input".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runtime.frontend.reading import Rows
from trtforge.ground.errors import ForgeError
from trtforge.targets import names

Asks = Callable[[Any], bool]


def _sent(values: Any) -> bool:
    return values.size > 0


def _any(values: Any) -> bool:
    return bool(values.any())


def _not_one(values: Any) -> bool:
    return bool((values != 1).any())


_LORA = "the engine was built without adapters"
_LOGITS = "the engine does not gather logits"
_PROMPT_TABLE = "the engine takes tokens of its vocabulary only"
_DECODER = "this is a decoder-only model"
_DRAFTS = "the engine takes no drafts from its clients"
_RETENTION = "blocks are kept by last use"
_LOOKAHEAD = "the engine was built without lookahead decoding"
_MEDIA = "the model takes text only"
#: input → (why it cannot be honoured, whether its values ask for it)
NOT_OFFERED: Mapping[str, tuple[str, Asks]] = {
    "return_context_logits": (_LOGITS, _any),
    "return_generation_logits": (_LOGITS, _any),
    "lora_task_id": (_LORA, _sent),
    "lora_weights": (_LORA, _sent),
    "lora_config": (_LORA, _sent),
    "prompt_embedding_table": (_PROMPT_TABLE, _sent),
    "prompt_table_extra_id": (_PROMPT_TABLE, _any),
    "prompt_table_extra_ids": (_PROMPT_TABLE, _any),
    "prompt_vocab_size": (_PROMPT_TABLE, _any),
    "decoder_text_input": (_DECODER, _sent),
    "decoder_input_ids": (_DECODER, _sent),
    "decoder_input_lengths": (_DECODER, _any),
    "encoder_input_features": (_DECODER, _sent),
    "encoder_output_lengths": (_DECODER, _any),
    "cross_attention_mask": (_DECODER, _sent),
    "skip_cross_attn_blocks": (_DECODER, _any),
    "use_draft_logits": ("a draft token is kept where it is the answer's own next one", _any),
    "draft_input_ids": (_DRAFTS, _sent),
    "draft_logits": (_DRAFTS, _sent),
    "draft_acceptance_threshold": (_DRAFTS, _sent),
    "mrope_rotary_cos_sin": (_MEDIA, _sent),
    "mrope_position_deltas": (_MEDIA, _sent),
    "context_phase_params": ("prefill and generation run in one process", _sent),
    "retention_token_range_starts": (_RETENTION, _sent),
    "retention_token_range_ends": (_RETENTION, _sent),
    "retention_token_range_priorities": (_RETENTION, _sent),
    "retention_token_range_durations_ms": (_RETENTION, _sent),
    "retention_decode_priority": (_RETENTION, _sent),
    "retention_decode_duration_ms": (_RETENTION, _sent),
    "lookahead_window_size": (_LOOKAHEAD, _sent),
    "lookahead_ngram_size": (_LOOKAHEAD, _sent),
    "lookahead_verification_set_size": (_LOOKAHEAD, _sent),
    "top_p_decay": ("top_p is the same for every token", _not_one),
}
#: inputs that change nothing here: they weigh beams, fill rows of unequal length, belong to a decaying ``top_p``,
#: or switch on outputs that are always there
WITHOUT_EFFECT = frozenset(
    {
        "length_penalty", "early_stopping", "beam_search_diversity_rate", "pad_id", "top_p_min", "top_p_reset_ids",
        "return_num_input_tokens",
    }
)  # fmt: skip


def refuse_not_offered(rows: Rows) -> None:
    """Refuse what the runtime cannot do.

    Raises:
        ForgeError: ``TF-RUN-107`` naming the input; ``TF-RUN-103`` for beams.
    """
    for name, (why, asks) in NOT_OFFERED.items():
        if name in rows and asks(rows.tensors[name]):
            elsewhere = " or ".join(f"build.target: {target}" for target in names(lambda target: target.trtllm_build))
            raise ForgeError(
                "TF-RUN-107",
                f"{name} is not offered by this model",
                asked=f"{name} of shape {list(rows.tensors[name].shape)}",
                why=why,
                remedies=[f"leave {name} out", f"serve the model with TensorRT-LLM ({elsewhere})"],
            )
    for row in range(rows.count):
        beams = int(rows.one("beam_width", row, 1))
        if beams != 1:
            raise ForgeError(
                "TF-RUN-103",
                "beam search is not offered",
                asked=f"beam_width: {beams}",
                why="the runtime samples; a beam needs a cache a beam and cannot stream",
                remedies=["beam_width: 1", "num_return_sequences with top_k or top_p for variety"],
            )
