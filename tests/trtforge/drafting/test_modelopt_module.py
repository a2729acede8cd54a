"""What ModelOpt's own training module computes, beside what serves the heads that it exports.

In ModelOpt 0.47 a hidden state passes ``input_layernorm`` before ``hidden_norm``, because the module keeps the Llama
layer's own norm; TensorRT-LLM, vLLM and SGLang apply ``hidden_norm`` alone. This decides what docs/drafters.md says.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from runtime.speculation.reference import Eagle3Reference
from tests.trtforge.drafting.checkpoints import FFN, HEADS, KV_HEADS, SIZE, VOCAB, WIDTH, Spec, write

LENGTH = 6
SPEC = Spec("modelopt", theta=10000.0, mapped=False)


def module_states(ours: Eagle3Reference, tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """ModelOpt's (normed, fed-back) states [T, H] with the weights of ``ours``."""
    modeling = pytest.importorskip("modelopt.torch.speculative.plugins.modeling_eagle")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=FFN,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=SIZE,
        num_hidden_layers=1,
        vocab_size=VOCAB,
        max_position_embeddings=64,
        rms_norm_eps=ours.head.eps,
        rope_theta=10000.0,
        attn_implementation="eager",
    )
    more = SimpleNamespace(
        use_last_layernorm=True,
        draft_vocab_size=VOCAB,
        has_lm_head=True,
        use_aux_hidden_state=True,
        eagle_aux_hidden_state_layer_ids=[1, 5, 8],
        eagle_decoder_type="llama",
    )
    for name, value in vars(more).items():
        setattr(config, name, value)
    module = modeling.EagleModule(config, LlamaDecoderLayer)
    module.load_state_dict(dict(ours.tensors), strict=False)
    module._maybe_init_rope()
    mask = torch.full((LENGTH, LENGTH), -1e9).triu(1)[None, None]
    embedded = torch.nn.functional.embedding(tokens, ours.tensors["embed_tokens.weight"])
    with torch.no_grad():
        normed, fed, _ = module(states[None], embedded[None], mask, torch.arange(LENGTH)[None])
    return normed[0], fed[0]


def given(folder: Path, *, ones: bool) -> tuple[Eagle3Reference, Tensor, Tensor]:
    made = torch.Generator().manual_seed(3)
    ours = Eagle3Reference.open(write(folder, SPEC), embedding=torch.randn(VOCAB, WIDTH, generator=made))
    tensors = dict(ours.tensors)
    if ones:
        tensors["layers.0.input_layernorm.weight"] = torch.ones(WIDTH)
    return (
        Eagle3Reference(ours.head, tensors, ours.targets),
        torch.randint(VOCAB, (LENGTH,), generator=made),
        torch.randn(LENGTH, WIDTH, generator=made),
    )


def test_with_an_even_input_norm_module_and_servers_agree(tmp_path: Path) -> None:
    ours, tokens, states = given(tmp_path / "a", ones=True)
    normed, fed = module_states(ours, tokens, states)
    logits, mine = ours.step(tokens, states)
    # a norm of a normed state is that state but for eps, 1e-5 of its mean square
    assert (mine - fed).abs().max() < 1e-4
    assert (logits - normed @ ours.tensors["lm_head.weight"].T).abs().max() < 1e-4


def test_with_a_trained_input_norm_they_do_not(tmp_path: Path) -> None:
    ours, tokens, states = given(tmp_path / "a", ones=False)
    _, fed = module_states(ours, tokens, states)
    assert (ours.step(tokens, states)[1] - fed).abs().max() > 1e-2
