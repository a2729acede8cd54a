"""What Triton serves, read from its repository: model, layout, tokenizer, limits and the tensors that are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.openai_front.names import LayoutNames, names_of
from triton_repo.configs import read_config
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.ground.rows import read_yaml
from trtforge.targets.layouts import INFLIGHT_BATCHER, LAYOUTS, LLM_API, NATIVE

#: what an answer cannot do without
NEEDED = ("text", "finish", "output_tokens")


@dataclass(frozen=True)
class Deployment:
    """A model as it is served.

    Attributes:
        model: its name in Triton.
        name: what its clients call it.
        tokenizer: folder of ``tokenizer.json``.
        max_seq_len: tokens of prompt and answer together; max_input_len: of the prompt.
        block_size: tokens of a KV block; None: not known.
        batched: the first axis of every tensor is the batch.
        parameters: of the model's configuration.
        inputs: input tensor → its type (``INT32`` …).
        outputs: names of the output tensors.
        unheeded: inputs that are there and change nothing, for want of a setting.
        adds_special: the server puts the tokenizer's special tokens around a text.
        created: when the repository was written, in seconds since 1970.
        fingerprint: changes with what is served.
    """

    names: LayoutNames
    model: str
    name: str
    tokenizer: Path
    max_seq_len: int
    max_input_len: int
    block_size: int | None
    decoupled: bool
    batched: bool
    parameters: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: frozenset[str]
    unheeded: frozenset[str]
    adds_special: bool
    created: int
    fingerprint: str

    def takes(self, field: str) -> bool:
        """Whether a field of a job has an input tensor that is heeded."""
        name = self.names.inputs.get(field)
        return name in self.inputs and name not in self.unheeded

    def gives(self, field: str) -> bool:
        """Whether a field of a piece has an output tensor, and can be switched on."""
        switch = self.names.switches.get(field)
        return self.names.outputs.get(field) in self.outputs and (switch is None or switch in self.inputs)

    def usual_length(self, bound: int) -> int:
        """Tokens of an answer whose client does not say: ``bound``, or fewer where the recipe's ``serving`` says so."""
        named = (self.parameters.get(name) for name in ("default_max_tokens", "max_output_tokens"))
        return min([bound, *(int(value) for value in named if value)])

    @property
    def gives_log_probs(self) -> bool:
        return self.gives("log_probs") and self.gives("token_ids")


def read_deployment(repository: Path, *, name: str | None = None, bundle: Path | None = None) -> Deployment:
    """What the repository serves.

    Args:
        name: what clients call the model; None: the native model's own name, or that of the bundle's folder.
        bundle: the bundle that the repository is of.

    Raises:
        ForgeError: TF-OAI-023 when it is of no layout that the endpoint knows, or lacks what every answer needs.
    """
    configs = {
        path.parent.name: read_config(path)
        for path in sorted(repository.glob("*/config.pbtxt"))
        if path.parent.is_dir()
    }
    own = [model for model, config in configs.items() if "engine_dir" in config.parameters]
    try:
        if own:
            found = _native(repository, own[0], configs[own[0]])
        elif "tensorrt_llm_bls" in configs:
            found = _inflight(repository, configs)
        elif (repository / "tensorrt_llm" / "1" / "model.yaml").is_file():
            found = _llm_api(repository, configs["tensorrt_llm"])
        else:
            raise _unknown(repository, f"models: {', '.join(configs) or 'none'}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unknown(repository, f"{type(error).__name__}: {error}") from error
    config, names = configs[found["model"]], found["names"]
    fallback = found["model"] if names.layout.own_runtime else (bundle or repository.parent).resolve().name
    deployment = Deployment(
        name=name or fallback,
        decoupled=config.model_transaction_policy.decoupled,
        batched=config.max_batch_size > 0,
        parameters=_parameters(config),
        inputs={tensor.name: _type(tensor) for tensor in config.input},
        outputs=frozenset(tensor.name for tensor in config.output),
        unheeded=found.pop("unheeded", frozenset()),
        created=int((repository / found["model"] / "config.pbtxt").stat().st_mtime),
        fingerprint=_fingerprint(repository, bundle),
        **found,
    )
    missing = [names.outputs[field] for field in NEEDED if not deployment.gives(field)]
    if missing:
        raise _unknown(repository, f"{found['model']} has no output {', '.join(missing)}, which every answer needs")
    return deployment


def differences(deployment: Deployment, config: Any) -> list[str]:
    """What a live model's ``ModelConfig`` has otherwise than the repository that was read; it is then another model."""
    there = {tensor.name: _type(tensor) for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    parameters = _parameters(config)
    names = there.keys() ^ deployment.inputs.keys() | outputs ^ deployment.outputs
    found = [f"tensor {name}" for name in sorted(names)]
    for name in sorted({*parameters, *deployment.parameters}):
        if parameters.get(name) != deployment.parameters.get(name):
            found.append(f"{name}: {parameters.get(name)!r} there, {deployment.parameters.get(name)!r} here")
    return found


def _unknown(repository: Path, why: str) -> ForgeError:
    return ForgeError(
        "TF-OAI-023",
        "this repository cannot be put behind the OpenAI endpoint",
        asked=str(repository),
        why=why,
        remedies=[
            f"a repository of layout {', '.join(LAYOUTS)} as this version writes it: trtforge triton emit",
            "the bundle or the folder of models itself: --bundle BUNDLE, --repository DIR",
        ],
    )


def _type(tensor: Any) -> str:
    from tritonclient.grpc import model_config_pb2 as pb

    return str(pb.DataType.Name(tensor.data_type)).removeprefix("TYPE_").replace("STRING", "BYTES")


def _parameters(config: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def _native(repository: Path, model: str, config: Any) -> dict[str, Any]:
    parameters = _parameters(config)
    folder = (repository / model / parameters["engine_dir"]).resolve()
    engine = read_json_file(folder / "engine.json")
    return {
        "names": names_of(NATIVE),
        "model": model,
        "tokenizer": folder,
        "max_seq_len": int(parameters["max_seq_len"]),
        "max_input_len": int(parameters["max_input_len"]),
        "block_size": _number(engine.get("kv_cache", {}).get("block_size")),
        "adds_special": True,
    }


def _inflight(repository: Path, configs: Mapping[str, Any]) -> dict[str, Any]:
    model = LAYOUTS[INFLIGHT_BATCHER.name].question
    assert model is not None
    parameters = _parameters(configs[model.model])
    special = _parameters(configs["preprocessing"]).get("add_special_tokens", "true")
    longest = int(parameters["max_seq_len"])
    names, engine = names_of(INFLIGHT_BATCHER), _parameters(configs["tensorrt_llm"])
    # without a backend of its own the engine writes on as if there were no guide
    guides = () if engine.get("guided_decoding_backend") else (names.inputs["guide"], names.inputs["guide_type"])
    return {
        "names": names,
        "unheeded": frozenset(guides),
        "model": model.model,
        "tokenizer": (repository / model.model / parameters["tokenizer_dir"]).resolve(),
        "max_seq_len": longest,
        "max_input_len": longest - 1,
        "block_size": _block_size(repository, engine.get("gpt_model_path", "")),
        "adds_special": special == "true",
    }


def _block_size(repository: Path, engine: str) -> int | None:
    """Tokens of a block, from the configuration of a compiled engine where it lies here."""
    for folder in (repository.resolve().parent, Path()):  # the launch scripts start the server in the bundle
        try:
            build = read_json_file(folder / engine / "config.json")["build_config"]
            return _number(build["plugin_config"]["tokens_per_block"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _llm_api(repository: Path, config: Any) -> dict[str, Any]:
    folder = repository / "tensorrt_llm"
    document = read_yaml(folder / "1" / "model.yaml")
    longest = int(document["max_seq_len"])
    named = document.get("tokenizer") or document["model"]
    return {
        "names": names_of(LLM_API),
        "model": "tensorrt_llm",
        "tokenizer": (folder / named).resolve(),
        "max_seq_len": longest,
        "max_input_len": min(longest - 1, int(document.get("max_input_len", longest))),
        "block_size": _number((document.get("kv_cache_config") or {}).get("tokens_per_block")),
        "adds_special": True,
    }


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and value > 0 else None


def _fingerprint(repository: Path, bundle: Path | None) -> str:
    """Of the bundle's manifest, which holds the hash of every file, else of the models' configurations."""
    import hashlib

    manifest = None if bundle is None else bundle / "manifest.json"
    files = [manifest] if manifest is not None and manifest.is_file() else sorted(repository.glob("*/config.pbtxt"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return f"fp_{digest.hexdigest()[:16]}"
