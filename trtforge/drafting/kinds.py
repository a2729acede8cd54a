"""What kind of drafter a folder is, by its headers and its config.json; for preflight and ``trtforge draft``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtforge.ground.safetensors_header import TensorInfo

#: what EAGLE-3 alone has: vocabulary maps, and the name of its only layer
_MAPS, _LAYER = ("d2t", "t2d"), "midlayer."


@dataclass(frozen=True)
class Kind:
    """Attributes:
    name: how the command and the recipes' ``speculation.method`` call it.
    title: with its article.
    """

    name: str
    title: str


EAGLE3 = Kind("eagle3", "an EAGLE-3 drafter")
EAGLE = Kind("eagle", "an EAGLE drafter (-1 or -2)")
MEDUSA = Kind("medusa", "Medusa heads")
MODEL = Kind("model", "a language model of its own")
DFLASH = Kind("dflash", "a DFlash block drafter")
DSPARK = Kind("dspark", "a DSpark block drafter")
P_EAGLE = Kind("p-eagle", "a P-EAGLE drafter, which drafts its tokens in parallel")
MTP = Kind("mtp", "a multi-token prediction (MTP) head")
REDRAFTER = Kind("redrafter", "a ReDrafter (recurrent drafter)")
MLP = Kind("mlp-speculator", "an MLP speculator")

#: said by ``speculators_model_type``, by an architecture or by a section of config.json: the first that matches
_BY_CONFIG: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (P_EAGLE, re.compile(r"p[-_]?eagle", re.IGNORECASE)),
    (DSPARK, re.compile(r"dspark|domino", re.IGNORECASE)),
    (DFLASH, re.compile(r"dflash", re.IGNORECASE)),
    (REDRAFTER, re.compile(r"re(current)?_?draft", re.IGNORECASE)),
    (MLP, re.compile(r"mlp_?speculator", re.IGNORECASE)),
    (MEDUSA, re.compile(r"medusa", re.IGNORECASE)),
    (EAGLE3, re.compile(r"eagle_?3", re.IGNORECASE)),
    (MTP, re.compile(r"mtp|nextn", re.IGNORECASE)),
)
#: a residual block of a Medusa head, in the two ways in which heads are stored
_MEDUSA = re.compile(r"(medusa_head\.)?\d+\.(0\.)?linear\.(weight|bias)")
#: parts that one kind alone has
_BY_TENSOR: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (P_EAGLE, re.compile(r"(model\.)?mask_hidden")),
    (DSPARK, re.compile(r"(markov_head\.)?markov_w1(\.weight)?")),
    (REDRAFTER, re.compile(r"(drafter\.)?rnn_[uw](\.weight)?")),
    (MLP, re.compile(r"(speculator\.)?(emb|proj)\.0\.weight")),
    (MTP, re.compile(r"(model\.)?(mtp|layers\.\d+)\.(.+\.)?(enorm|hnorm|pre_fc_norm_hidden)\.weight")),
)


def is_eagle_3(headers: Mapping[str, TensorInfo]) -> bool:
    """Whether a drafter reads hidden states of three layers (``fc`` [D, 3 D]) or has EAGLE-3's own tensors.

    Of another number of layers the attention tells: it reads [embedding, state], twice the drafter's width.
    """
    fc, query = headers.get("fc.weight"), headers.get("layers.0.self_attn.q_proj.weight")
    wide = fc is not None and len(fc.shape) == 2 and fc.shape[1] == 3 * fc.shape[0]
    joined = fc is not None and query is not None and query.shape[1:] == (2 * fc.shape[0],)
    return wide or joined or any(name in _MAPS or name.startswith(_LAYER) for name in headers)


def drafter_method(headers: Mapping[str, TensorInfo]) -> str | None:
    """The speculation method that a drafter's tensors are for: eagle (-1 or -2), eagle3 or medusa; None when unknown.

    EAGLE's ``fc`` joins an embedding and one hidden state ([D, 2 D]), EAGLE-3's three hidden states ([D, 3 D]).
    """
    if is_eagle_3(headers):
        return EAGLE3.name
    fc = headers.get("fc.weight")
    if fc is not None and len(fc.shape) == 2 and fc.shape[1] == 2 * fc.shape[0]:
        return EAGLE.name
    return MEDUSA.name if any(_MEDUSA.fullmatch(name) for name in headers) else None


def kind_of(config: Mapping[str, Any], headers: Mapping[str, TensorInfo]) -> Kind | None:
    """What a folder with this config.json and these tensors is; None when it is no drafter that is known.

    Parts that one kind alone has decide first, then what config.json says, then widths, then names of a whole model.
    """
    for kind, pattern in _BY_TENSOR:
        if any(pattern.fullmatch(name) for name in headers):
            return kind
    architectures = config.get("architectures")
    said = " ".join(
        str(value)
        for value in (
            config.get("speculators_model_type"),
            config.get("model_type"),
            *(architectures if isinstance(architectures, list) else ()),
            *(key for key in ("dflash_config", "medusa_num_heads") if key in config),
        )
    )
    for kind, pattern in _BY_CONFIG:
        if pattern.search(said):
            return kind
    plain = {name.removeprefix("model."): info for name, info in headers.items()}
    method = drafter_method(plain)
    by_width = next((kind for kind in (EAGLE3, EAGLE, MEDUSA) if kind.name == method), None)
    if by_width is not None or "fc.weight" in plain:
        return by_width or (EAGLE3 if "eagle_config" in config else None)
    if any(name.startswith("layers.0.") for name in plain) and "embed_tokens.weight" in plain:
        return MODEL
    return None
