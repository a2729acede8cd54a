"""A launch plan as shell scripts, written into a bundle's ``launch`` folder.

Each script starts in the bundle, refuses a bundle whose engine is not compiled and a machine with too few devices
(exit code 3) before anything is started, and replaces itself by the server (or by mpirun or srun), so that a signal
reaches it. It draws the key that closes Triton's dangerous APIs, gives threads a large stack, keeps the server's files
and shared memory to its user, and leaves a watch behind that ends a server whose Python model died.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from launcher.plans import REGIONS, LaunchPlan, check_name
from trtforge.tritonserver.server_launch import OPENING_VARIABLE, STACK, UMASK

_HEAD = """#!/bin/sh
# {title}
# Written by trtforge. It has to run where the engine was built for; it starts the server in the bundle's folder.
set -eu
cd "$(dirname "$0")/{bundle}"
if [ ! -d repository ]; then
  echo "$(pwd) is not the bundle: it has no folder repository" >&2
  exit 3
fi
job={job}
"""
#: what holds for everything that a script starts. The stack is a number: threads under "unlimited" get 2 MiB.
_SAFETY = f"""\
# files are the user's own, threads get a large stack, what no client needs is closed by a key that nobody is told
umask {UMASK:03o}
unset {OPENING_VARIABLE}
ulimit -S -s {STACK >> 10} 2>/dev/null || ulimit -S -s "$(ulimit -H -s)" 2>/dev/null || true
key=$(od -An -v -tx1 -N24 /dev/urandom | tr -d ' \\n')
if [ "${{#key}}" -ne 48 ]; then
  echo "no random key could be drawn for the server's closed APIs" >&2
  exit 3
fi
"""
#: Triton stays ready when the process of a Python model is gone, and waiting requests wait for ever. A process that is
#: dead at two looks is nobody's ordinary end. Triton makes its regions readable by all, whatever the umask.
_WATCH = f"""# Triton does not notice that the process of a Python model died; this ends the server with it
watch() {{
  before=""
  while sleep 1 && read -r line 2>/dev/null <"/proc/$1/stat"; do
    case $line in *") Z "*) break ;; esac
    dead=""
    for stat in /proc/[0-9]*/stat; do
      read -r line 2>/dev/null <"$stat" || continue
      case $line in *" (triton_python_b) Z "*) ;; *) continue ;; esac
      server=${{line##*") Z "}}
      server=${{server%% *}}
      tr '\\0' ' ' 2>/dev/null <"/proc/$server/cmdline" | grep -q "={REGIONS}" || continue
      dead="$dead $server"
      case " $before " in *" $server "*)
        echo "the process of a Python model died, and its server is ended" >&2
        kill -KILL "$server" ;;
      esac
    done
    before=$dead
    for region in /dev/shm/{REGIONS}*; do
      [ ! -O "$region" ] || chmod 600 "$region" || true
    done
  done
}}
watch "$$" </dev/null >/dev/null &
"""
_ENGINE = """if [ ! -f {engine}/config.json ]; then
  echo "no compiled engine in {engine}: first sh {scripts}/container.sh, on the GPU machine" >&2
  exit 3
fi
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
_TITLES = {
    "leader": "Leader mode: one server a rank, on one node",
    "orchestrator": "Orchestrator mode: one server that starts a worker a rank",
}
#: mpirun refuses to run as root, which is what a container's user is
_MPIRUN = """root=""
[ "$(id -u)" -ne 0 ] || root=--allow-run-as-root
exec mpirun $root \\
"""


def script_names(plan: LaunchPlan) -> list[str]:
    """The scripts that :func:`write_scripts` makes of a plan, the one that needs no batch system first."""
    if plan.mode == "orchestrator":
        return ["mpirun.sh"]
    if len(plan.ranks) == 1:
        return ["server.sh"]
    return ["slurm.sh"] if plan.nodes > 1 else ["mpirun.sh", "slurm.sh"]


def write_scripts(plan: LaunchPlan, folder: Path, *, bundle: str = "..") -> list[Path]:
    """Write the plan's scripts and ``plan.json`` into ``folder`` (made when missing).

    Args:
        bundle: the bundle, seen from ``folder``.

    Returns:
        The files: ``server.sh`` for one server; ``mpirun.sh`` and ``slurm.sh`` for several ranks.

    Raises:
        ForgeError: TF-LCH-045 when the way to the bundle needs quotes.
    """
    check_name(bundle)
    folder.mkdir(parents=True, exist_ok=True)
    engines = [engine for engine in (plan.engine, plan.draft_engine) if engine]
    needs = "".join(_ENGINE.format(engine=engine, scripts=engine.rpartition("/")[0]) for engine in engines)
    if plan.devices_a_node:
        needs += _DEVICES.format(needed=plan.devices_a_node, world=plan.world_size, nodes=plan.nodes)
    texts = {
        "server.sh": lambda: _head("One server", "$$", bundle) + needs + _start(plan.ranks[0].command),
        "mpirun.sh": lambda: _head(_TITLES[plan.mode], "$$", bundle) + needs + _mpirun(plan),
        "slurm.sh": lambda: _slurm(plan, bundle, needs),
    }
    written = []
    for name in script_names(plan):
        path = folder / name
        path.write_text(texts[name](), encoding="utf-8")
        path.chmod(0o755)
        written.append(path)
    path = folder / "plan.json"
    path.write_text(json.dumps(plan.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return sorted([*written, path])


def _start(command: Sequence[str]) -> str:
    return f"{_SAFETY}{_WATCH}exec {' '.join(command)}\n"


def _mpirun(plan: LaunchPlan) -> str:
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(plan.environment.items()))
    parts = " : \\\n".join(f"  -n 1 {' '.join(rank.command)}" for rank in plan.ranks)
    return _SAFETY + _WATCH + exports + _MPIRUN + parts + "\n"


def _slurm(plan: LaunchPlan, bundle: str, needs: str) -> str:
    """``sbatch launch/slurm.sh`` in the bundle, or run inside an allocation: srun reads one line a rank."""
    lines = "\n".join(f"{rank.rank} {' '.join(rank.command)}" for rank in plan.ranks)
    a_node = plan.world_size // plan.nodes
    options = f"--nodes={plan.nodes} --ntasks={plan.world_size} --ntasks-per-node={a_node}"
    directives = "\n".join(f"#SBATCH {option}" for option in (*options.split(), f"--gpus-per-node={a_node}"))
    head = _head("Leader mode: one server a rank, placed by Slurm", '"${SLURM_JOB_ID:-$$}"', bundle)
    # sbatch reads its lines before the first command, and runs a copy of the script from elsewhere
    head = head.replace("set -eu\n", f"{directives}\nset -eu\n")
    head = head.replace(f'cd "$(dirname "$0")/{bundle}"', f'cd "${{SLURM_SUBMIT_DIR:-$(dirname "$0")/{bundle}}}"')
    return (
        f'{head}{needs}{_SAFETY}{_WATCH}ranks=$(mktemp)\ncat > "$ranks" <<END\n{lines}\nEND\n'
        f'exec srun --mpi=pmix --kill-on-bad-exit=1 {options} --multi-prog "$ranks"\n'
    )


def _head(title: str, job: str, bundle: str) -> str:
    return _HEAD.format(title=title, job=job, bundle=bundle)
