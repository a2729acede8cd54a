"""A launch plan as shell scripts, written into a bundle's ``launch`` folder.

Each script starts in the bundle, refuses a machine with too few devices (exit code 3) before anything is
started, and replaces itself by the server (or by mpirun or srun), so that a signal reaches it.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from launcher.plans import LaunchPlan

_HEAD = """#!/bin/sh
# {title}
# Written by trtforge. It has to run where the engine was built for; it starts the server in the bundle's folder.
set -eu
cd "$(dirname "$0")/.."
job={job}
"""
_DEVICES = """if [ -n "${{CUDA_VISIBLE_DEVICES+set}}" ]; then
  visible=$(printf '%s' "$CUDA_VISIBLE_DEVICES" | tr ',' '\\n' | grep -c .) || visible=0
elif command -v nvidia-smi >/dev/null 2>&1; then
  visible=$(nvidia-smi --list-gpus | grep -c '^GPU') || visible=0
else
  visible=0
fi
if [ "$visible" -lt {needed} ]; then
  echo "GPUs needed on this node: {needed} (ranks: {world}, nodes: {nodes}); visible: $visible" >&2
  exit 3
fi
"""
#: mpirun refuses to run as root, which is what a container's user is
_MPIRUN = """root=""
[ "$(id -u)" -ne 0 ] || root=--allow-run-as-root
exec mpirun $root \\
"""


def write_scripts(plan: LaunchPlan, folder: Path) -> list[Path]:
    """Write the plan's scripts and ``plan.json`` into ``folder`` (made when missing).

    Returns:
        The files: ``server.sh`` for one server; ``mpirun.sh`` and ``slurm.sh`` for several ranks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scripts = {"server.sh": _single(plan)}
    if plan.mode == "orchestrator":
        scripts = {"mpirun.sh": _mpirun(plan, "Orchestrator mode: one server that starts a worker a rank")}
    elif len(plan.ranks) > 1:
        scripts = {"slurm.sh": _slurm(plan)}
        if plan.nodes == 1:
            scripts["mpirun.sh"] = _mpirun(plan, "Leader mode: one server a rank, on one node")
    written = []
    for name, text in scripts.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        written.append(path)
    path = folder / "plan.json"
    path.write_text(json.dumps(plan.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return sorted([*written, path])


def _single(plan: LaunchPlan) -> str:
    return _head(plan, "One server", "$$") + "exec " + " ".join(plan.ranks[0].command) + "\n"


def _mpirun(plan: LaunchPlan, title: str) -> str:
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(plan.environment.items()))
    parts = " : \\\n".join(f"  -n 1 {' '.join(rank.command)}" for rank in plan.ranks)
    return _head(plan, title, "$$") + exports + _MPIRUN + parts + "\n"


def _slurm(plan: LaunchPlan) -> str:
    """``sbatch launch/slurm.sh``, or run inside an allocation: srun places the ranks and reads one line a rank."""
    lines = "\n".join(f"{rank.rank} {' '.join(rank.command)}" for rank in plan.ranks)
    a_node = plan.world_size // plan.nodes
    options = f"--nodes={plan.nodes} --ntasks={plan.world_size} --ntasks-per-node={a_node}"
    directives = "\n".join(f"#SBATCH {option}" for option in (*options.split(), f"--gpus-per-node={a_node}"))
    head = _head(plan, "Leader mode: one server a rank, placed by Slurm", '"${SLURM_JOB_ID:-$$}"', batch=directives)
    return (
        f'{head}ranks=$(mktemp)\ncat > "$ranks" <<END\n{lines}\nEND\n'
        f'exec srun --mpi=pmix --kill-on-bad-exit=1 {options} --multi-prog "$ranks"\n'
    )


def _head(plan: LaunchPlan, title: str, job: str, batch: str = "") -> str:
    text = _HEAD.format(title=title, job=job)
    if batch:
        # sbatch reads its lines before the first command, and runs a copy of the script from elsewhere
        text = text.replace("set -eu\n", f"{batch}\nset -eu\n")
        text = text.replace('cd "$(dirname "$0")/.."', 'cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}"')
    if plan.devices_a_node:
        text += _DEVICES.format(needed=plan.devices_a_node, world=plan.world_size, nodes=plan.nodes)
    return text
