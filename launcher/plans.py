"""How the servers of a bundle are started: which process runs where, with which arguments and devices.

- Leader mode (``inflight_batcher_llm``): one tritonserver a rank. Rank 0 serves all models; the others load
  ``tensorrt_llm`` only, by explicit model control, and answer nobody. Every rank has its own ports and
  shared-memory prefix, because ranks share a machine.
- Orchestrator mode: one tritonserver that starts a worker a rank; several models or instances, one node.
- ``llmapi`` and ``native``: one tritonserver; ``LLM()`` starts its own ranks.

Sources: https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/llama_multi_instance.md and
``triton_backend/scripts/launch_triton_server.py`` of TensorRT-LLM. No plan has run on GPUs here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trtforge.ground.errors import ForgeError
from trtforge.machine.gpus import gpus
from trtforge.recipe.schema import Recipe
from trtforge.tables import stack_table
from trtforge.tritonserver.server_launch import body_limit, closing

Mode = Literal["leader", "orchestrator", "single"]
#: ports of a rank: http, grpc, metrics
PORTS_A_RANK = 3
DEFAULT_PORT = 8000
#: folder of the models, seen from the bundle, which the servers are started in
REPOSITORY = "repository"
#: folder of the compiled engine in a bundle
ENGINE = "engine/trtllm"
#: and of the one that drafts for it
DRAFT_ENGINE = "engine/draft/trtllm"
#: seconds that running requests get when a server is stopped
EXIT_TIMEOUT = 30
_PLAIN = re.compile(r"[A-Za-z0-9._/:@+=,-]+")
_SETS = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*(;[0-9]{1,4}(,[0-9]{1,4})*)*")
#: stands for a number that the script knows when it runs: it keeps two servers' regions apart
JOB = "${job}"
#: stands for the key of the closed APIs, which the script draws when it runs: no plan and no script holds one
ADMIN_KEY = "${key}"
#: how the shared-memory regions of a job's servers begin
REGIONS = f"trtllm_{JOB}_"


@dataclass(frozen=True)
class Rank:
    """One process of the plan.

    Attributes:
        rank: number in the job; 0 answers clients.
        node: number of its node.
        device: number of its device among the node's visible ones; None where the server uses several.
        command: program and arguments; ``${job}`` and ``${key}`` are filled in by the script.
    """

    rank: int
    node: int
    device: int | None
    command: tuple[str, ...]


@dataclass(frozen=True)
class LaunchPlan:
    """The processes of one server.

    Attributes:
        world_size: ranks of the engine, tp × pp.
        devices_a_node: devices that every node must show.
        device_sets: devices of each instance, where they are named (``gpu_device_ids``).
        environment: variables of every process.
        engine: folder of the compiled engine that must be there, seen from the bundle; None: none is needed.
        draft_engine: the same of the engine that drafts.
    """

    mode: Mode
    world_size: int
    nodes: int
    devices_a_node: int
    device_sets: tuple[tuple[str, ...], ...]
    environment: dict[str, str]
    ranks: tuple[Rank, ...]
    engine: str | None
    draft_engine: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def visible_devices(environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """The GPUs that a process here would see, as CUDA counts them; None when this machine does not say."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [part.strip() for part in named.split(",") if part.strip() and part.strip() != "-1"]
    shown = gpus()
    return None if shown.lacking else [str(number) for number, _ in enumerate(shown.all)]


def plan(
    recipe: Recipe,
    *,
    nodes: int = 1,
    devices: Sequence[str] | None = None,
    host: str = "127.0.0.1",
    first_port: int = DEFAULT_PORT,
) -> LaunchPlan:
    """The plan for a recipe's layout, ``triton.launch`` and parallelism.

    Args:
        nodes: machines that the ranks are spread over, evenly.
        devices: what a node shows (:func:`visible_devices`); None checks nothing now: the script checks again.
        host: address that rank 0 listens on; the others stay on the loopback.
        first_port: rank r listens on ``first_port + 3 r`` and the two after it.

    Raises:
        ForgeError: TF-LCH-040 (too few devices), TF-LCH-041 (a device named twice, or sets that do not fit the
            ranks), TF-LCH-042 (ranks do not spread evenly), TF-LCH-043 (the mode is for one node), TF-LCH-044
            (ports), TF-LCH-045 (a name that scripts cannot carry), TF-LCH-046 (devices that are no numbers).
    """
    check_name(host)
    mode: Mode = "single"
    if recipe.layout.chain:
        mode = recipe.triton.launch
    parallel = recipe.build.parallel
    world = 1 if recipe.layout.own_runtime else parallel.tp * parallel.pp
    sets = _device_sets(recipe.triton.parameters.get("gpu_device_ids", ""))
    _check_sets(sets, world)
    drafts = recipe.layout.chain and recipe.speculation.method == "draft_target"
    _check_nodes(mode, world, nodes)
    if drafts and mode == "leader" and world > 1:
        raise ForgeError(
            "TF-LCH-049",
            f"leader mode starts {world} servers for the target's ranks, and none of them has the engine that drafts",
            asked=f"triton.launch: leader, speculation.method: draft_target, tp x pp: {world}",
            numbers={"world_size": world, "engines": 2},
            why="the processes of a leader launch are the ranks of one engine; two engines are the orchestrator's",
            remedies=["triton.launch: orchestrator", "build.parallel: {tp: 1, pp: 1}"],
        )
    a_node = len(sets) * world if sets else world // nodes
    _check_devices(devices, a_node, sets, world, mode)
    count = world if mode == "leader" else 1
    last_port = first_port + PORTS_A_RANK * count - 1
    if not 0 < first_port <= last_port <= 65535:
        raise ForgeError(
            "TF-LCH-044",
            f"there are no {PORTS_A_RANK * count} ports from {first_port} on",
            asked=f"first port {first_port}",
            numbers={"ranks": count, "last": last_port},
            remedies=[f"--port {DEFAULT_PORT}"],
        )
    ranks = []
    for rank in range(count):
        command = _server(rank, host if rank == 0 else "127.0.0.1", first_port, triton_of(recipe))
        if rank > 0:
            command += ["--model-control-mode=explicit", "--load-model=tensorrt_llm"]
        if mode == "orchestrator":
            # the workers own the GPUs; the server itself keeps its pools off them
            command += ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
            command += [f"--cuda-memory-pool-byte-size={number}:0" for number in range(a_node)]
        node = rank // (world // nodes) if mode == "leader" else 0
        device = rank % (world // nodes) if mode == "leader" else None
        ranks.append(Rank(rank, node, device, tuple(command)))
    environment = {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    return LaunchPlan(
        mode=mode,
        world_size=world,
        nodes=nodes,
        devices_a_node=0 if recipe.layout.own_runtime else a_node,
        device_sets=sets,
        environment=environment if mode == "orchestrator" else {},
        ranks=tuple(ranks),
        engine=ENGINE if recipe.layout.chain else None,
        draft_engine=DRAFT_ENGINE if drafts else None,
    )


def triton_of(recipe: Recipe) -> str | None:
    """The Triton release that a recipe's bundle is for; None where its stack is tied to none."""
    table = stack_table()
    row = table.row(recipe.stack) if recipe.stack else table.newest(recipe.build.target)
    return recipe.triton.version or (row.triton if row else None)


def _server(rank: int, host: str, first_port: int, release: str | None) -> list[str]:
    port = first_port + PORTS_A_RANK * rank
    return [
        "tritonserver",
        f"--model-repository={REPOSITORY}",
        f"--http-address={host}",
        f"--grpc-address={host}",
        f"--metrics-address={host}",
        f"--http-port={port}",
        f"--grpc-port={port + 1}",
        f"--metrics-port={port + 2}",
        f"--exit-timeout-secs={EXIT_TIMEOUT}",
        "--disable-auto-complete-config",
        f"--backend-config=python,shm-region-prefix-name={REGIONS}rank{rank}_",
        *closing(ADMIN_KEY),
        *body_limit(release),
    ]


def check_name(name: str) -> None:
    """Shells, mpirun and srun read the scripts, each with quotes of its own: a name that needs none is safe in all.

    Raises:
        ForgeError: TF-LCH-045.
    """
    if not _PLAIN.fullmatch(name):
        raise ForgeError(
            "TF-LCH-045",
            "a launch script cannot carry this name",
            asked=repr(name),
            why="shells, mpirun and srun quote differently",
            remedies=["a name of letters, digits and ._/:@+=,-"],
        )


def _device_sets(named: str) -> tuple[tuple[str, ...], ...]:
    if not named:
        return ()
    if not _SETS.fullmatch(named):
        raise ForgeError(
            "TF-LCH-046",
            "gpu_device_ids names no devices",
            asked=f"gpu_device_ids: {named!r}",
            why="TensorRT-LLM reads numbers of devices, a comma between them and a semicolon between instances",
            remedies=["gpu_device_ids: 0,1 for one instance, 0,1;2,3 for two", "remove gpu_device_ids"],
        )
    return tuple(tuple(str(int(device)) for device in part.split(",")) for part in named.split(";"))


def _check_sets(sets: tuple[tuple[str, ...], ...], world: int) -> None:
    every = [device for part in sets for device in part]
    twice = sorted({device for device in every if every.count(device) > 1})
    wrong = [",".join(part) for part in sets if len(part) != world]
    if not twice and not wrong:
        return
    why = [f"an instance has tp × pp = {world} ranks, and {'; '.join(wrong)} is no set of {world}"] if wrong else []
    why += [f"device {', '.join(twice)} would run two ranks"] if twice else []
    fitting = ";".join(",".join(str(i * world + k) for k in range(world)) for i in range(len(sets)))
    raise ForgeError(
        "TF-LCH-041",
        "the devices that are named do not fit the ranks",
        asked="gpu_device_ids: " + ";".join(",".join(part) for part in sets),
        numbers={"ranks": world, "instances": len(sets)},
        why="; ".join(why),
        remedies=[f"gpu_device_ids: {fitting}"],
    )


def _check_nodes(mode: Mode, world: int, nodes: int) -> None:
    if nodes > 1 and mode != "leader":
        raise ForgeError(
            "TF-LCH-043",
            "this way of starting is for one node",
            asked=f"{nodes} nodes",
            why="an orchestrator starts its workers by MPI_Comm_spawn, and LLM() its ranks beside itself",
            remedies=["triton.launch: leader (inflight_batcher_llm)", "trtllm-llmapi-launch trtllm-serve (llmapi)"],
        )
    if nodes < 1 or world % nodes:
        raise ForgeError(
            "TF-LCH-042",
            f"{world} ranks do not spread evenly over {nodes} nodes",
            asked=f"{nodes} nodes",
            numbers={"world_size": world, "nodes": nodes},
            why="every node runs the same number of ranks, one on each of its devices",
            remedies=[f"--nodes {count}" for count in range(1, world + 1) if world % count == 0],
        )


def _check_devices(
    devices: Sequence[str] | None, a_node: int, sets: tuple[tuple[str, ...], ...], world: int, mode: Mode
) -> None:
    if devices is None:
        return
    if len(set(devices)) != len(devices):
        raise ForgeError(
            "TF-LCH-041",
            "a device is named twice",
            asked="CUDA_VISIBLE_DEVICES=" + ",".join(devices),
            why="two ranks on one device wait for each other until one is ended",
            remedies=["CUDA_VISIBLE_DEVICES=" + ",".join(dict.fromkeys(devices))],
        )
    beyond = sorted({device for part in sets for device in part if int(device) >= len(devices)}, key=int)
    if len(devices) < a_node or beyond:
        why = f"every rank has a device of its own, and a node shows {len(devices)}"
        if beyond:
            why = f"device {', '.join(beyond)} is beyond the {len(devices)} that a node shows"
        shares = [n for n in range(1, len(devices) + 1) if world % n == 0]
        raise ForgeError(
            "TF-LCH-040",
            f"{a_node} devices a node are needed",
            asked=f"{len(devices)} devices",
            numbers={"devices": len(devices), "needed": a_node},
            why=why,
            remedies=[
                *([f"--nodes {world // shares[-1]}"] if shares and mode == "leader" and not sets else []),
                *(["remove gpu_device_ids"] if sets else []),
                *([f"build.parallel: {{tp: {shares[-1]}, pp: 1}}, and build again"] if shares else []),
                f"a machine with {max([a_node, *(int(device) + 1 for device in beyond)])} GPUs",
            ],
        )
