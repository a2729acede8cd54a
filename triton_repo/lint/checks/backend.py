"""Rules on what serves a model: backend, platform and runtime library, told by files where nothing says it."""

from __future__ import annotations

from collections.abc import Iterator

from triton_repo.lint.hits import TRITON_CORE, Hit, each_model, hit, rule
from triton_repo.lint.remedies import Remedies, Remedy, drop, here, out, person, put, together
from triton_repo.lint.repository import HOLE, MODEL_FILES, PLATFORMS, Model, Repository
from trtforge.ground.names import nearest
from trtforge.rules.tables import Section

SECTION = Section(30, "Backend and platform")


@rule("TF-TRI-125", "error", "nothing says which backend serves the model", TRITON_CORE)
@each_model
def no_backend(model: Model, repository: Repository) -> Iterator[Hit]:
    """Neither backend nor platform is set, and no file in the version folder has a name that tells."""
    if model.is_ensemble or not (model.knows("backend") and model.knows("platform")):
        return
    if not model.versions or any(version.names is None for version in model.versions):
        return  # that there is no version to look into is a finding of its own
    if not model.backend and not model.message.platform and "." not in model.name:
        yield hit(model, "neither backend nor platform is set", _by_files(model), "name")


@rule("TF-TRI-126", "error", "platform and backend do not go together", TRITON_CORE)
@each_model
def platform(model: Model, repository: Repository) -> Iterator[Hit]:
    """Triton knows each platform with one backend and refuses other pairs and unknown platforms."""
    stated, backend = model.message.platform, model.message.backend
    if not stated or stated == "ensemble" or HOLE.search(stated):
        return
    if stated not in PLATFORMS:
        if backend and backend not in set(MODEL_FILES.values()):
            return  # a backend of the user's own may call its platform what it likes
        yield hit(model, f"platform {stated!r} is not known", _platform(model, stated), "platform")
    elif backend and PLATFORMS[stated] != backend:
        message = f"platform {stated!r} belongs to backend {PLATFORMS[stated]!r}, not to {backend!r}"
        remedies = [put(model, f'"{PLATFORMS[stated]}"', "backend"), *_other_platform(model, backend)]
        yield hit(model, message, remedies, "platform")


#: files that tell a backend beside those of auto-complete, and the backend
_TELLING = {
    "model.json": "vllm",
    "rank0.engine": "tensorrtllm",
    "model.dali": "dali",
    "xgboost.json": "fil",
    "xgboost.model": "fil",
    "checkpoint.tl": "fil",
}
#: ends of names that tell a backend, whose file then has to be named
_ENDS = {
    ".py": "python",
    ".onnx": "onnxruntime",
    ".plan": "tensorrt",
    ".engine": "tensorrt",
    ".pt": "pytorch",
    ".pth": "pytorch",
    ".xml": "openvino",
}


def _told(model: Model) -> tuple[str, str | None] | None:
    """The backend that the files of a version tell, and the file's name where it is not the backend's own."""
    names = {name for version in model.versions for name in version.names or ()}
    for file, backend in (*MODEL_FILES.items(), *_TELLING.items()):
        if file in names:
            return backend, None
    ends = {(backend, name) for end, backend in _ENDS.items() for name in names if name.endswith(end)}
    return next(iter(ends)) if len(ends) == 1 else None


def _by_files(model: Model) -> Remedy:
    """The backend that fits what lies in the version folder."""
    told = _told(model)
    if told is None:
        return person("backend: " + ", ".join(f'"{name}"' for name in _BACKENDS[:7]) + " or another")
    backend, file = told
    stated = put(model, f'"{backend}"', "backend")
    if file is None:
        return stated
    return together(stated, put(model, f'"{file}"', "default_model_filename"))


def _platform(model: Model, stated: str) -> Remedies:
    """What an unknown platform meant: a backend, or another spelling of a platform."""
    gone = drop(model, "platform", text="no platform")
    if model.message.backend:
        return gone
    told = _told(model)
    meant = told[0] if told is not None else _backend_like(stated)
    near = nearest(stated, [*PLATFORMS, "ensemble"], cutoff=0.85)
    if near is not None and (told is None or PLATFORMS.get(near) == told[0]):
        return put(model, f'"{near}"', "platform")
    if told is not None and told[1] is not None:
        return together(_by_files(model), gone)
    if meant is not None:
        return together(put(model, f'"{meant}"', "backend"), gone)
    return person("the backend that serves it, and no platform")


def _other_platform(model: Model, backend: str) -> tuple[Remedy, ...]:
    """The platform of the backend that is stated; none where the backend has no platform of its own."""
    platforms = [name for name, owner in PLATFORMS.items() if owner == backend]
    return (put(model, f'"{platforms[0]}"', "platform"),) if platforms else (drop(model, "platform"),)


_BACKENDS = (
    "python",
    "tensorrt",
    "onnxruntime",
    "pytorch",
    "openvino",
    "tensorrtllm",
    "vllm",
    "dali",
    "fil",
    "identity",
)


@rule("TF-TRI-129", "error", "the backend's name is misspelt", "https://github.com/triton-inference-server/backend")
@each_model
def backend_name(model: Model, repository: Repository) -> Iterator[Hit]:
    """The server looks for a library backends/NAME/libtriton_NAME.so and finds none."""
    stated = model.message.backend
    if stated in _BACKENDS or not stated or HOLE.search(stated):
        return
    near = _backend_like(stated)
    if near:
        yield hit(model, f"backend {stated!r} is not known", here(f'"{near}"'), "backend")


def _backend_like(stated: str) -> str | None:
    """The backend whose name a text is spelt like; None when it is like none."""
    others = {"onnx": "onnxruntime", "trtllm": "tensorrtllm", "trt": "tensorrt", "torch": "pytorch"}
    others |= {name.replace("_", ""): backend for name, backend in PLATFORMS.items()}
    normal = {name.replace("_", ""): name for name in (*_BACKENDS, *others)}
    plain = stated.lower().replace("-", "").replace("_", "")
    near = normal.get(plain) or nearest(stated, _BACKENDS, cutoff=0.85)
    return others.get(near or "", near)


@rule("TF-TRI-153", "error", "the runtime is no library of a backend", TRITON_CORE)
@each_model
def runtime(model: Model, repository: Repository) -> Iterator[Hit]:
    """runtime names the file that the server loads from the backend's or the model's folder, and from nowhere else."""
    stated = model.message.runtime
    if not stated or HOLE.search(stated) or model.is_ensemble:
        return
    library = f"libtriton_{model.backend}.so"
    beside = {name for version in model.versions for name in version.names or ()}
    # model.py is the runtime of backends that are written in Python (vllm), not of a model
    own = stated != "model.py" and (stated in beside or model.has(stated))
    usual = model.backend in _BACKENDS and model.backend != "vllm"
    if "/" in stated or (usual and stated != library and not own):
        ways = (out(), here(f'"{library}"')) if model.backend else (out(),)
        yield hit(model, f"runtime {stated!r}", ways, "runtime")
