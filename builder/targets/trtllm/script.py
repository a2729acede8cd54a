"""``build.sh`` and ``container.sh``: the build that this machine cannot do, written down exactly.

Policy: both scripts do what :mod:`builder.targets.trtllm.runner` does in place, with the same words. They refuse
another version of TensorRT-LLM, since its engine would not load in the stack that serves it; a build that stops
half-way leaves nothing that looks like an engine, because config.json is moved last. The container has no
network, no capabilities and the caller's user; the checkpoint is mounted read-only. That user has no entry in the
image's passwd, and Python's ``getpass.getuser`` (torch asks it for cache folders) then wants ``USER``.
"""

from __future__ import annotations

import shlex
from pathlib import Path

BUILD_SCRIPT = "build.sh"
CONTAINER_SCRIPT = "container.sh"
CHECKPOINT_DIR = "checkpoint"
ENGINE_DIR = "trtllm"
#: the engine that drafts, with checkpoint and scripts of its own
DRAFT_DIR = "draft"
TIMING_CACHE = "timing.cache"
#: kernel timings that a build leaves for the next one
OUTPUT_CACHE = "model.cache"
#: of a failed import, what is shown: the exception and where it was raised
_ERROR_LINES = 12

_BUILD = """\
#!/bin/sh
# Compiles the TensorRT-LLM engine of this folder: sh build.sh [OUTPUT_DIR]
# Needs TensorRT-LLM {version} and the GPU that will serve the engine; container.sh brings the first.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
out=${{1:-$here/{engine_dir}}}
if ! said=$(python3 -c 'import tensorrt_llm; print("\\nversion=" + tensorrt_llm.__version__)' 2>&1); then
  printf '%s\\n' "$said" | tail -n {error_lines} >&2
  echo "build.sh: needs TensorRT-LLM {version}, and importing it failed as above" >&2
  exit 3
fi
found=$(printf '%s\\n' "$said" | sed -n 's/^version=//p' | tail -n 1)
if [ "$found" != {version} ]; then
  echo "build.sh: needs TensorRT-LLM {version}, found ${{found:-none}}: another version's engine would not load" >&2
  exit 3
fi
if [ -e "$out/config.json" ]; then
  echo "build.sh: $out holds an engine already; name another folder" >&2
  exit 2
fi
mkdir -p "$out"
work=$out/.building
rm -rf "$work"
trap 'rm -rf "$work"' EXIT
trap 'exit 130' HUP INT TERM
trtllm-build --checkpoint_dir "$here/{checkpoint_dir}" --output_dir "$work" \\
  {arguments}
mv "$work"/rank*.engine "$out/"
if [ -f "$work/{output_cache}" ]; then mv "$work/{output_cache}" "$out/"; fi
mv "$work/config.json" "$out/config.json"
echo "built $out"
"""

_CONTAINER = """\
#!/bin/sh
# Runs build.sh of this folder in the stack's container: sh container.sh [OUTPUT_DIR]
# Needs Docker with the NVIDIA Container Toolkit; pull the image first: the build itself has no network.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
out=${{1:-$here/{engine_dir}}}
mkdir -p "$out"
out=$(CDPATH= cd -- "$out" && pwd)
exec docker run --rm --network none --gpus all --ipc host \\
  --ulimit memlock=-1 --ulimit stack=67108864 \\
  --cap-drop ALL --security-opt no-new-privileges \\
  --user "$(id -u):$(id -g)" --env USER=trtforge --env HOME=/tmp --workdir /tmp \\
  --mount "type=bind,src=$here,dst=/engine,readonly" \\
  --mount "type=bind,src=$out,dst=/out" \\
  {image} \\
  sh /engine/{build_script} /out
"""


def build_script(version: str, arguments: list[str]) -> str:
    """Text of build.sh; paths among ``arguments`` begin with ``{here}`` or ``{work}``."""
    words = []
    for word in arguments:
        for name in ("here", "work"):
            if word.startswith(f"{{{name}}}/"):
                words.append(f'"${name}{word.removeprefix(f"{{{name}}}")}"')
                break
        else:
            words.append(shlex.quote(word))
    return _BUILD.format(
        version=version,
        error_lines=_ERROR_LINES,
        engine_dir=ENGINE_DIR,
        checkpoint_dir=CHECKPOINT_DIR,
        output_cache=OUTPUT_CACHE,
        arguments=" \\\n  ".join(_flag_lines(words)),
    )


def _flag_lines(words: list[str]) -> list[str]:
    """Each flag with its values on one line."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append([])
        lines[-1].append(word)
    return [" ".join(line) for line in lines]


def container_script(image: str) -> str:
    """Text of container.sh."""
    return _CONTAINER.format(engine_dir=ENGINE_DIR, image=shlex.quote(image), build_script=BUILD_SCRIPT)


def write_scripts(out: Path, version: str, arguments: list[str], image: str | None) -> list[str]:
    """Write the scripts into ``out``, executable; returns their names. Without an image there is no container.sh."""
    texts = {BUILD_SCRIPT: build_script(version, arguments)}
    if image is not None:
        texts[CONTAINER_SCRIPT] = container_script(image)
    for name, text in texts.items():
        path = out / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return sorted(texts)
