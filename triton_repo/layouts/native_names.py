"""Models with the names that clients of TensorRT-LLM fix, over the native model.

``ensemble`` and ``tensorrt_llm_bls`` take text, ``tensorrt_llm`` takes tokens. Each is a Triton ensemble of one step
that hands the client's tensors to the native model under its names, so that there is one engine and no further
process. Triton 2.51 does not tell a step that the client of its ensemble has gone: such a request runs to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from triton_repo.configs import add_tensors, new_config
from triton_repo.layouts.ifb_tensors import (
    BLS_INPUTS,
    ENGINE_INPUTS,
    ENGINE_OUTPUTS,
    ENSEMBLE_INPUTS,
    ENSEMBLE_OUTPUTS,
    typed,
)
from triton_repo.layouts.native_tensors import FROM_ENGINE, OWN_INPUTS, OWN_OUTPUTS
from triton_repo.tensors import TensorRow
from trtforge.ground.errors import ForgeError


@dataclass(frozen=True)
class ClientName:
    """One of the names: its tensors, and the native model's names of inputs that are called otherwise."""

    inputs: tuple[TensorRow, ...]
    outputs: tuple[TensorRow, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)


#: ``context_phase_params`` is an input of that name too, which is refused: an ensemble has one tensor a name
_ENGINE_OUTPUTS = tuple(row for row in ENGINE_OUTPUTS if row.name != "context_phase_params")
#: the older name of ``seed``, which ``tensorrt_llm_bls`` has, and ``stop``, which ``tensorrt_llm`` has
_SEED = next(row for row in BLS_INPUTS if row.name == "random_seed")
_STOP = next(row for row in ENGINE_INPUTS if row.name == "stop")
CLIENT_NAMES: Mapping[str, ClientName] = {
    "ensemble": ClientName((*ENSEMBLE_INPUTS, *OWN_INPUTS, _SEED, _STOP), (*ENSEMBLE_OUTPUTS, *OWN_OUTPUTS)),
    "tensorrt_llm_bls": ClientName((*BLS_INPUTS, *OWN_INPUTS, _STOP), (*ENSEMBLE_OUTPUTS, *OWN_OUTPUTS)),
    "tensorrt_llm": ClientName((*ENGINE_INPUTS, *OWN_INPUTS), (*_ENGINE_OUTPUTS, *OWN_OUTPUTS), FROM_ENGINE),
}


def configurations(native: str, *, max_batch_size: int, decoupled: bool) -> dict[str, Any]:
    """``ModelConfig`` messages by name.

    Args:
        native: the native model's own name.

    Raises:
        ForgeError: TF-TRI-090 when that is one of the names.
    """
    if native in CLIENT_NAMES:
        raise ForgeError(
            "TF-TRI-090",
            "the native model has a name that clients fix",
            asked=f"name: {native}, triton.client_names: true",
            why=f"{', '.join(CLIENT_NAMES)} are written beside the native model and hand requests on to it",
            remedies=["another name for the recipe", "triton.client_names: false"],
        )
    configs = {}
    for name, row in CLIENT_NAMES.items():
        config = new_config(name, backend="", max_batch_size=max_batch_size, decoupled=decoupled)
        config.platform = "ensemble"
        add_tensors(config, _plain(row.inputs), _plain(row.outputs))
        step = config.ensemble_scheduling.step.add(model_name=native, model_version=-1)
        step.input_map.update({row.renamed.get(tensor.name, tensor.name): tensor.name for tensor in row.inputs})
        step.output_map.update({tensor.name: tensor.name for tensor in row.outputs})
        configs[name] = config
    return configs


def _plain(rows: Iterable[TensorRow]) -> list[TensorRow]:
    """The rows as an ensemble declares them: what the step's model does to shapes is not the ensemble's to say.

    All inputs are optional. Triton counts the required ones without looking which they are, and answers nothing at all
    when one is missing; the native model refuses such a request by name.
    """
    plain = typed(rows, logits="FP32", weights="FP16")
    return [replace(row, optional=True, scalar=False, ragged=False) for row in plain]
