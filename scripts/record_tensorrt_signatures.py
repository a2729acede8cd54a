"""Records the signatures of TensorRT's real Python bindings, without TensorRT.

The wheels ``tensorrt-cu13-bindings`` hold the whole extension module, but not the libraries that it links. The nine
functions that it wants from them are given by empty stand-ins, so that it imports and its classes can be asked for
their signatures; nothing of TensorRT runs.

    python scripts/record_tensorrt_signatures.py FOLDER 10.14.1.48.post1 10.16.1.11 11.4.0.106

writes one JSON file a version: for each class its methods (argument names, types, which have defaults), properties
(whether they can be set) and enum members, with the wheel and its SHA-256. The tests hold every call of the target
and of the executor against these files.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

#: what the target and the executor use, and the enums that they name
CLASSES = (
    "Builder",
    "INetworkDefinition",
    "IBuilderConfig",
    "IOptimizationProfile",
    "ITimingCache",
    "IProgressMonitor",
    "ILogger",
    "IHostMemory",
    "ITensor",
    "OnnxParser",
    "OnnxParserRefitter",
    "ParserError",
    "Refitter",
    "Runtime",
    "ICudaEngine",
    "IExecutionContext",
    "IPluginRegistry",
)
ENUMS = (
    "BuilderFlag",
    "ExecutionContextAllocationStrategy",
    "ILogger.Severity",
    "DataType",
    "MemoryPoolType",
    "NetworkDefinitionCreationFlag",
    "PreviewFeature",
    "ProfilingVerbosity",
    "TensorIOMode",
)
FUNCTIONS = ("get_plugin_registry", "get_builder_plugin_registry", "init_libnvinfer_plugins")
STUBBED = ("libnvinfer.so", "libnvinfer_plugin.so", "libnvonnxparser.so")

#: runs in a process of its own: the stand-ins must not stay loaded
_ASK = r"""
import json, re, sys
import tensorrt_bindings as trt

def lines(function):
    return [line.strip() for line in (getattr(function, "__doc__", None) or "").splitlines()]

def overloads(name, function):
    found = []
    for line in lines(function):
        match = re.match(r"(?:\d+\. )?" + re.escape(name) + r"\((.*)\) -> (.+)$", line)
        if match and "*args" not in match[1]:
            found.append({"arguments": arguments(match[1]), "returns": short(match[2])})
    return found

def short(text):
    return text.replace("tensorrt_bindings.tensorrt.", "").replace("nvinfer1::", "").replace("v_1_0::", "")

def arguments(text):
    parts, depth, part = [], 0, ""
    for letter in text:
        depth += letter in "[(<"
        depth -= letter in "])>"
        if letter == "," and not depth:
            parts.append(part)
            part = ""
        else:
            part += letter
    parts.append(part)
    result = []
    for one in (p.strip() for p in parts if p.strip()):
        name, _, rest = one.partition(":")
        if name == "self":
            continue
        kind, _, standard = rest.partition("=")
        result.append({"name": name, "type": short(kind.strip()), "optional": bool(standard)})
    return result

def describe(cls):
    methods, properties = {}, {}
    for name in sorted({n for base in cls.__mro__ for n in vars(base)}):
        if name.startswith("_") and name != "__init__":
            continue
        member = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
        if isinstance(member, property):
            properties[name] = {"settable": member.fset is not None}
        elif callable(member) and (found := overloads(name, member)):
            methods[name] = found
    return {"methods": methods, "properties": properties}

def find(name):
    found = trt
    for part in name.split("."):
        found = getattr(found, part, None)
    return found

names = json.loads(sys.argv[1])
out = {
    "version": trt.__version__,
    "classes": {n: describe(getattr(trt, n)) for n in names["classes"] if hasattr(trt, n)},
    "enums": {n: {k: int(v) for k, v in find(n).__members__.items()} for n in names["enums"] if find(n)},
    "functions": {
        n: overloads(n, getattr(trt, n)) for n in names["functions"] if hasattr(trt, n)
    },
}
print(json.dumps(out))
"""


def _stand_ins(module: Path, folder: Path) -> None:
    """Shared libraries with the names that ``module`` needs and the functions that it does not find."""
    listed = subprocess.run(["nm", "-D", "--undefined-only", str(module)], capture_output=True, text=True, check=True)
    symbols = [line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()]
    wanted = [name for name in symbols if name.startswith(("createInfer", "createNv", "getNv", "initLibNv"))]
    wanted += [name for name in symbols if name in ("getPluginRegistry", "getBuilderPluginRegistry")]
    source = folder / "stand_in.c"
    source.write_text("\n".join(f"void* {name}(void) {{ return 0; }}" for name in wanted), encoding="utf-8")
    dynamic = subprocess.run(["readelf", "-d", str(module)], capture_output=True, text=True, check=True).stdout
    for line in dynamic.splitlines():
        name = line.partition("[")[2].rstrip("]")
        if "NEEDED" in line and name.startswith(STUBBED):
            shared = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name)]
            subprocess.run(
                [*shared, str(source)] if name.startswith("libnvinfer.so") else [*shared, "-xc", "/dev/null"],
                check=True,
            )


def record(version: str, python: str = sys.executable) -> dict[str, object]:
    """The signatures of one version, from its wheel on PyPI."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [python, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder)]
        subprocess.run([*command, f"tensorrt-cu13-bindings=={version}"], check=True)
        wheel = next(folder.glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "package")
        _stand_ins(folder / "package" / "tensorrt_bindings" / "tensorrt.so", folder)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder / "package")}
        names = json.dumps({"classes": CLASSES, "enums": ENUMS, "functions": FUNCTIONS})
        asked = subprocess.run([python, "-c", _ASK, names], capture_output=True, text=True, check=True, env=environment)
        recorded: dict[str, object] = json.loads(asked.stdout)
        recorded["wheel"] = wheel.name
        recorded["sha256"] = hashlib.sha256(wheel.read_bytes()).hexdigest()
        return recorded


def _lines(recorded: dict[str, object]) -> str:
    """JSON with a line for each class, enum and function: a change of the bindings shows as one line."""
    parts = []
    for key, value in sorted(recorded.items()):
        if isinstance(value, dict):
            rows = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in sorted(value.items()))
            parts.append(f" {json.dumps(key)}: {{\n{rows}\n }}")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(out: Path, versions: list[str]) -> None:
    """Write one file a version."""
    out.mkdir(parents=True, exist_ok=True)
    for version in versions:
        text = _lines(record(version))
        (out / f"{version}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
