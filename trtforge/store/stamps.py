"""Compatibility stamps: what a bundle needs of a machine, held against the machine at hand.

Policy: an ``error`` is what would fail or silently serve wrong answers (another ABI, an op version that
the runtime does not know, a numpy that breaks the server's stub, a tokenizer that is not the one the
evidence was made with); a ``warning`` is what makes the bundle's figures say less about this machine
(another processor, another build of the plugin library). A machine without a GPU is where bundles for GPUs are made
and copied: that such a bundle cannot run there is a warning, and :data:`UNSERVABLE` lets serving refuse it.
Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from trtforge.ground.errors import ForgeError
from trtforge.ground.hashing import hash_file
from trtforge.machine.record import Machine, this_machine
from trtforge.machine.software import tool_versions
from trtforge.native.host_library import host_library_abi, host_library_hash
from trtforge.native.ops import OPS_VERSIONS, SAME_OPS
from trtforge.native.plugin_library import find_plugin_library, plugin_library
from trtforge.stack.check import check_piece
from trtforge.stack.probe import Loaded, probe
from trtforge.store.integrity import VerifyFinding
from trtforge.tables import Component
from trtforge.targets import TARGETS, Target

#: findings after which a bundle cannot be served here, whatever their severity
UNSERVABLE = frozenset({"TF-BND-020", "TF-BND-027", "TF-BND-031", "TF-BND-032", "TF-BND-034"})
#: pieces of a stack whose other version cannot load what the bundle holds
_BINDING = ("tensorrt", "tensorrt_llm", "tritonserver")


@dataclass(frozen=True)
class Loader:
    """What stamps are held against: a machine, and the libraries on it that would load a bundle."""

    machine: Machine
    numpy: str | None
    host_abi: int | None
    plugin_library_sha256: str | None
    #: of the TensorRT plugin library; None where there is none, or none that answers
    plugin_abi: str | None = None
    #: asks for a piece of a stack as it would be loaded here
    ask: Callable[[Component], Loaded] = field(default=probe, compare=False)


def _plugin_abi_here() -> str | None:
    path = find_plugin_library()
    if path is None or not path.is_file():
        return None
    try:
        return plugin_library(path).abi
    except ForgeError:
        return None


def loader_here() -> Loader:
    """This machine and environment; the plugin library is asked for its ABI, not believed."""
    numpy = tool_versions(["numpy"])["numpy"]
    return Loader(
        machine=this_machine(),
        numpy=None if numpy == "absent" else numpy,
        host_abi=host_library_abi(),
        plugin_library_sha256=host_library_hash(),
        plugin_abi=_plugin_abi_here(),
    )


def check_stamps(root: Path, manifest: Mapping[str, Any], loader: Loader | None = None) -> list[VerifyFinding]:
    """Findings TF-BND-020 … TF-BND-029 and TF-BND-031 … TF-BND-034 for a bundle whose content was verified."""
    stamps = manifest.get("stamps")
    if not isinstance(stamps, Mapping) or not stamps:
        return []
    here = loader or loader_here()
    made_on = manifest.get("machine")
    made_on = made_on if isinstance(made_on, Mapping) else {}
    held = _Held(root, stamps, made_on, here)
    found = [item for check in _CHECKS for item in check(held)]
    if _for_gpus(stamps) and not here.machine.architectures:
        found = [replace(item, severity="warning") if item.code in UNSERVABLE else item for item in found]
    return found


def unservable(manifest: Mapping[str, Any], findings: Iterable[VerifyFinding]) -> list[VerifyFinding]:
    """The findings of a bundle that keep it from being served on this machine.

    Of a bundle that runs on processors only what is an error does: its torch runs on others, more slowly.
    """
    stamps = manifest.get("stamps")
    if not isinstance(stamps, Mapping) or not _for_gpus(stamps):
        return []
    return [item for item in findings if item.code in UNSERVABLE and (item.code != "TF-BND-020" or _compiled(stamps))]


_ENGINE = "engine/engine.json"
_REBUILD = "build the bundle again on this machine: trtforge run RECIPE"


def _for_gpus(stamps: Mapping[str, Any]) -> bool:
    target = _target(stamps)
    return target is not None and target.needs_gpu


def _target(stamps: Mapping[str, Any]) -> Target | None:
    """The target of the bundle's engine; None of one that this version does not have."""
    return TARGETS.get(str(stamps.get("target")))


def _compiled(stamps: Mapping[str, Any]) -> bool:
    """Whether the bundle holds machine code for a GPU (a TensorRT-LLM bundle may hold none yet)."""
    target = _target(stamps)
    return target is not None and target.compiled and bool(stamps.get("compiled", True))


@dataclass(frozen=True)
class _Held:
    """A bundle's stamps and the machine that made it, against the loader here."""

    root: Path
    stamps: Mapping[str, Any]
    made_on: Mapping[str, Any]
    here: Loader


def _architecture(held: _Held) -> Iterator[VerifyFinding]:
    wanted = held.made_on.get("arch")
    if wanted and wanted != held.here.machine.arch:
        compiled = _compiled(held.stamps)
        yield VerifyFinding(
            "TF-BND-020",
            "error" if compiled else "warning",
            _ENGINE,
            f"the engine was made on {wanted}, this machine is {held.here.machine.arch}"
            + ("" if compiled else "; its kernels and the bundle's figures were chosen and measured there"),
            _REBUILD,
        )
    isa = held.stamps.get("isa", held.made_on.get("isa", ()))
    lacking = [flag for flag in isa if flag not in held.here.machine.processor.isa]
    if lacking and wanted == held.here.machine.arch:
        yield VerifyFinding(
            "TF-BND-021",
            "warning",
            _ENGINE,
            f"the engine was planned for a processor with {', '.join(lacking)}, which this one lacks: other kernels "
            "run, more slowly, and results may differ in the last bits",
            _REBUILD,
        )


def _python(held: _Held) -> Iterator[VerifyFinding]:
    rule = held.stamps.get("python")
    if rule and not _satisfies(held.here.machine.python, str(rule)):
        yield VerifyFinding(
            "TF-BND-022",
            "error",
            "repository",
            f"the repository's Python code needs Python {rule}, this is {held.here.machine.python}",
            "use an environment with that Python",
        )


def _host_abi_matches(held: _Held) -> Iterator[VerifyFinding]:
    wanted, target = held.stamps.get("host_abi"), _target(held.stamps)
    if wanted is None or target is None or target.needs_gpu:
        return
    if held.here.host_abi is None:
        yield VerifyFinding(
            "TF-BND-029",
            "warning",
            _ENGINE,
            "the plugins' host library is not installed here: attention runs in plain torch, several times slower",
            "install trtforge with a C++ compiler present (g++), or run `trtforge plugins build`",
        )
    elif held.here.host_abi != wanted and not {held.here.host_abi, wanted} <= set(SAME_OPS):
        yield VerifyFinding(
            "TF-BND-023",
            "error",
            _ENGINE,
            f"the engine needs ABI {wanted} of the plugins' host library, the one here has {held.here.host_abi}",
            "install the version of trtforge that made the bundle, or build the bundle again",
        )


def _ops_version(held: _Held) -> Iterator[VerifyFinding]:
    wanted = held.stamps.get("ops_version")
    if wanted is not None and wanted not in OPS_VERSIONS:
        yield VerifyFinding(
            "TF-BND-024",
            "error",
            _ENGINE,
            f"the graph uses version {wanted} of the trtforge ops, this version runs {list(OPS_VERSIONS)}",
            "install the version of trtforge that made the bundle, or build the bundle again",
        )


def _numpy(held: _Held) -> Iterator[VerifyFinding]:
    rule = held.stamps.get("numpy")
    if rule and (held.here.numpy is None or not _satisfies(held.here.numpy, str(rule))):
        yield VerifyFinding(
            "TF-BND-025",
            "error",
            "repository",
            f"Triton {held.stamps.get('triton') or ''} needs numpy {rule}, here is {held.here.numpy or 'none'}: "
            "its Python stub would read zeros, partly in silence",
            f"pip install 'numpy{rule}'",
        )


def _tokenizer(held: _Held) -> Iterator[VerifyFinding]:
    wanted = held.stamps.get("tokenizer_sha256")
    path = held.root / "engine" / "tokenizer.json"
    if wanted and (not path.is_file() or hash_file(path) != wanted):
        yield VerifyFinding(
            "TF-BND-026",
            "error",
            "engine/tokenizer.json",
            "the engine's tokenizer is not the one that the checkpoint came with",
            "build the bundle again: trtforge run RECIPE --force build",
        )


def _gpu(held: _Held) -> Iterator[VerifyFinding]:
    wanted = [str(name) for name in held.stamps.get("gpu_architectures", ())]
    if wanted and _compiled(held.stamps) and not set(wanted) & set(held.here.machine.architectures):
        yield VerifyFinding(
            "TF-BND-027",
            "error",
            _ENGINE,
            f"the engine holds code for {', '.join(wanted)}, this machine has "
            f"{', '.join(held.here.machine.architectures) or 'no GPU'}",
            "add the architecture to build.architectures and build again, or serve on a machine that has one of those",
        )


def _plugin_library(held: _Held) -> Iterator[VerifyFinding]:
    wanted, target = held.made_on.get("plugin_library_sha256"), _target(held.stamps)
    if target is not None and target.tensorrt_llm:
        return  # TensorRT-LLM brings its own plugins
    if wanted and held.here.plugin_library_sha256 and wanted != held.here.plugin_library_sha256:
        yield VerifyFinding(
            "TF-BND-028",
            "warning",
            _ENGINE,
            "another build of the plugins' host library is installed than the one the evidence was made with",
            "run `trtforge plugins test`, or build the bundle again to have its evidence for this library",
        )


def _plugin_abi(held: _Held) -> Iterator[VerifyFinding]:
    wanted = held.stamps.get("plugin_abi")
    if wanted and held.here.plugin_abi != wanted:
        yield VerifyFinding(
            "TF-BND-034",
            "error",
            _ENGINE,
            f"the plan needs TensorRT plugins of ABI {wanted}, here is "
            + (f"ABI {held.here.plugin_abi}" if held.here.plugin_abi else "no plugin library"),
            "trtforge plugins build with the version of trtforge that made the bundle, or build the bundle again",
        )


def _stack(held: _Held) -> Iterator[VerifyFinding]:
    """What is loaded here, not what pip says, against the stack that the bundle was made for."""
    stack = held.stamps.get("stack")
    for row in held.stamps.get("serves_with") or ():
        piece = check_piece(Component.model_validate(row), held.here.ask(Component.model_validate(row)))
        remedy = f"trtforge stack check {stack} lists every piece; serve in the stack's container"
        for code, message in piece.findings:
            if code == "TF-STK-002":
                yield VerifyFinding("TF-BND-032", "warning", _ENGINE, f"{message}: it cannot be served here", remedy)
            elif code == "TF-STK-003":
                yield VerifyFinding("TF-BND-033", "warning", _ENGINE, message, remedy)
            else:
                severity = "error" if piece.component.probe in _BINDING else "warning"
                yield VerifyFinding("TF-BND-031", severity, _ENGINE, message, remedy)  # type: ignore[arg-type]


def _satisfies(version: str, rule: str) -> bool:
    try:
        return SpecifierSet(rule).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, ValueError):
        return False


_CHECKS: tuple[Callable[[_Held], Iterator[VerifyFinding]], ...] = (
    _architecture,
    _python,
    _host_abi_matches,
    _ops_version,
    _numpy,
    _tokenizer,
    _gpu,
    _plugin_library,
    _plugin_abi,
    _stack,
)
