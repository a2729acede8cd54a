"""The ``native`` layout: one Python-backend model that embeds the runtime and the tokenizer.

``REPOSITORY/NAME/config.pbtxt`` and ``REPOSITORY/NAME/1/model.py``. The model finds its engine by the
``engine_dir`` parameter, a path relative to the model's own folder, so a bundle can be moved. Limits
are copied from the engine and checked against it again at load. Batching happens inside the runtime,
token by token, so Triton's own batcher is off; a client's request may hold as many prompts as a step has rows.
With ``client_names`` three more models hand requests on to it (:mod:`triton_repo.layouts.native_names`).
A warm-up request runs at load, so that the first client does not pay for first-touch costs.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_repo.configs import add_cpu_instance, add_tensors, new_config, print_config, set_parameters
from triton_repo.layouts import native_names
from triton_repo.layouts.native_serving import parameters_of
from triton_repo.layouts.native_tensors import INPUTS, OUTPUTS
from triton_repo.layouts.writing import from_model
from trtforge.drafting.record import read_speculation
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.targets import DEFAULT, served_by
from trtforge.targets.layouts import NATIVE

if TYPE_CHECKING:
    from trtforge.recipe.load import LoadedRecipe
    from trtforge.recipe.schema import Recipe
    from trtforge.recipe.schema_serving import Serving

ENGINE_FILE = "engine.json"
LIMITS = ("max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len")
#: tokens that the warm-up request generates
WARMUP_TOKENS = 4
MODEL_CODE = Path(__file__).with_name("native_model.py")


def emit(
    engine_dir: Path,
    out: Path,
    *,
    name: str,
    engine_reference: str = "../../engine",
    decoupled: bool = True,
    client_names: bool = False,
    serving: Serving | None = None,
) -> dict[str, Any]:
    """Write the repository below ``out`` (an empty or missing folder).

    Args:
        engine_dir: the engine that the repository will serve; its limits are read.
        out: the repository's folder.
        name: the model's name, as clients say it.
        engine_reference: ``engine_dir`` parameter: relative to the model's folder.
        decoupled: answers may be streamed; without, plain ``infer`` calls work and get one whole answer.
        serving: the recipe's; None: as by default.
        client_names: also write ``ensemble``, ``tensorrt_llm_bls`` and ``tensorrt_llm``.

    Returns:
        The emitted model's name, limits and files.

    Raises:
        ForgeError: TF-TRI-002 when the engine cannot be read, TF-TRI-003 when the folder is not empty,
            TF-TRI-090 when ``name`` is one that ``client_names`` writes.
    """
    engine = read_engine(engine_dir)
    if out.exists() and any(out.iterdir()):
        raise ForgeError(
            "TF-TRI-003", "the repository's folder is not empty", asked=str(out), remedies=["name an empty folder"]
        )
    limits = engine["limits"]
    rows = limits["max_batch_size"]
    others = native_names.configurations(name, max_batch_size=rows, decoupled=decoupled) if client_names else {}
    config = new_config(name, backend="python", max_batch_size=rows, decoupled=decoupled)
    add_tensors(config, INPUTS, OUTPUTS)
    add_cpu_instance(config)
    record = read_speculation(engine)
    set_parameters(
        config,
        {
            "engine_dir": engine_reference,
            **{name: str(limits[name]) for name in LIMITS},
            "exclude_input_in_output": "true",
            **({} if serving is None else parameters_of(serving)),
            # only where there is something to say: repositories of other engines stay as they are
            **({} if record is None else {"speculation": record.method}),
        },
    )
    model_dir = out / name
    (model_dir / "1").mkdir(parents=True)
    _add_warmup(config, model_dir)
    (model_dir / "config.pbtxt").write_text(print_config(config), encoding="utf-8")
    shutil.copyfile(MODEL_CODE, model_dir / "1" / "model.py")
    # The server's Python would leave bytecode beside the model, and a bundle with one file more no longer
    # verifies. It takes no environment variable that says otherwise; a file of the folder's name stops it.
    (model_dir / "1" / "__pycache__").touch()
    for other, message in others.items():
        (out / other / "1").mkdir(parents=True)
        (out / other / "config.pbtxt").write_text(print_config(message), encoding="utf-8")
        # a folder of nothing does not survive an archive or a version control system
        (out / other / "1" / ".keep").touch()
    return {
        "layout": NATIVE.name,
        "model": name,
        "models": [name, *others],
        "decoupled": decoupled,
        "limits": limits,
        "engine_reference": engine_reference,
        **({} if record is None else {"speculation": record.method}),
    }


def _add_warmup(config: Any, model_dir: Path) -> None:
    """One short real request, read by Triton from files in the model's ``warmup`` folder."""
    from tritonclient.grpc import model_config_pb2 as pb

    prompt = b"Hello"
    contents = {"text_input": struct.pack("<I", len(prompt)) + prompt, "max_tokens": struct.pack("<i", WARMUP_TOKENS)}
    folder = model_dir / "warmup"
    folder.mkdir()
    sample = config.model_warmup.add(name="first_request", batch_size=1, count=1)
    for row in INPUTS:
        if row.name in contents:
            (folder / row.name).write_bytes(contents[row.name])
            tensor = sample.inputs[row.name]
            tensor.data_type = pb.DataType.Value(f"TYPE_{row.dtype}")
            tensor.dims.extend(row.dims)
            tensor.input_data_file = row.name


def read_engine(engine_dir: Path) -> dict[str, Any]:
    """``engine.json`` with the keys that a repository needs; an engine that drafts with weights has them beside it.

    Raises:
        ForgeError: TF-TRI-002.
    """
    path = engine_dir / ENGINE_FILE
    try:
        engine = _served(path)
        record = read_speculation(engine)
        if record is not None and record.draft is not None:
            draft = _served(engine_dir / record.draft / ENGINE_FILE)
            apart = [name for name in LIMITS if draft["limits"][name] != engine["limits"][name]]
            if apart:
                raise ValueError(f"{record.draft}/{ENGINE_FILE} has another {apart[0]}, and drafts in the same steps")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ForgeError(
            "TF-TRI-002",
            "the engine cannot be read",
            asked=str(path),
            why=f"{type(error).__name__}: {error}",
            remedies=["build it again: trtforge run RECIPE --force build"],
        ) from None
    return engine


def _served(path: Path) -> dict[str, Any]:
    engine: dict[str, Any] = read_json_file(path)
    missing = set(LIMITS) - set(engine["limits"])
    if missing:
        raise KeyError(", ".join(sorted(missing)))
    served = served_by(NATIVE.name)
    if engine.get("target", DEFAULT.name) not in served:
        raise ValueError(f"it is of target {engine['target']}; native serves {' and '.join(served)}")
    return engine


def in_bundle(recipe: Recipe, engine: Mapping[str, Any], engine_dir: Path, out: Path) -> dict[str, Any]:
    """The repository beside the engine; see :class:`~triton_repo.layouts.modules.LayoutModule`."""
    return _for(recipe, engine_dir, out, recipe.name, "../../engine")


def by_hand(loaded: LoadedRecipe, source: Path, out: Path, *, name: str, tokenizer: Path | None) -> dict[str, Any]:
    """A repository for an engine that lies somewhere; see :class:`~triton_repo.layouts.modules.LayoutModule`."""
    return _for(loaded.recipe, source, out, name, from_model(source, out, name))


def _for(recipe: Recipe, engine_dir: Path, out: Path, name: str, reference: str) -> dict[str, Any]:
    return emit(
        engine_dir,
        out,
        name=name,
        engine_reference=reference,
        decoupled=recipe.triton.decoupled,
        client_names=recipe.triton.client_names,
        serving=recipe.serving,
    )


def code_files() -> list[Path]:
    """The files of code that a repository carries."""
    return [MODEL_CODE]
