"""Makes OpenVINO GenAI's environment and models for the comparison: one virtual environment, two conversions.

    python -m benchmarks.openvino_setup CHECKPOINT [FOLDER]

Its packages need another transformers than ours, so it gets an environment of its own (about 3 GB). The
models are the checkpoint's weights as float16, and as INT4 in groups of 64 (OpenVINO's own quantizer).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PACKAGES = (
    "torch==2.13.0",
    "openvino>=2026.1",
    "openvino-genai>=2026.1",
    "optimum-intel>=2.2",
    "transformers<5",
    "nncf",
)
MODELS = {
    "fp16": ("--weight-format", "fp16"),
    "int4": ("--weight-format", "int4", "--group-size", "64", "--ratio", "1.0"),
}


def main() -> int:
    """Install what is missing, convert what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(".trtforge/openvino"))
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
    # an image library that comes along and does not fit the CPU build of torch stops transformers' imports
    subprocess.run([str(python), "-m", "pip", "uninstall", "-q", "-y", "torchvision"], check=False)
    for name, options in MODELS.items():
        target = folder / "models" / name
        if target.is_dir():
            continue
        command = [str(folder / "bin" / "optimum-cli"), "export", "openvino", "-m", str(arguments.checkpoint)]
        command += ["--task", "text-generation-with-past", *options, str(target)]
        subprocess.run(command, check=True)
    print(f"ready: --openvino {folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
