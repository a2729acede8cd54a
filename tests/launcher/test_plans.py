"""Launch plans: ranks, ports, devices, and the scripts run against programs that only say what they were told."""

import json
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.targets.trtllm.script import ENGINE_DIR
from launcher.plans import plan, visible_devices
from launcher.scripts import script_names, write_scripts
from tests.support.nvml import H100, RTX_4090, show
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema import Recipe


def recipe(layout="inflight_batcher_llm", *, tp=1, pp=1, **triton):
    target = {"native": "torch", "llmapi": "trtllm-llmapi"}.get(layout, "trtllm-engine")
    document = {
        "name": "x",
        "model": {"source": "/m"},
        "build": {"target": target, "parallel": {"tp": tp, "pp": pp}},
        "triton": {"layout": layout, **triton},
    }
    return Recipe.model_validate(document)


def refused(code, *args, **kwargs):
    with pytest.raises(ForgeError) as caught:
        plan(*args, **kwargs)
    assert caught.value.code == code
    assert caught.value.remedies
    return caught.value


@given(tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 3]), first=st.integers(1024, 60000))
def test_leader_ranks_have_ports_prefixes_and_devices_of_their_own(tp, pp, first):
    made = plan(recipe(tp=tp, pp=pp), first_port=first)
    assert [rank.rank for rank in made.ranks] == list(range(tp * pp)) == [rank.device for rank in made.ranks]
    words = [word for rank in made.ranks for word in rank.command]
    ports = [int(word.split("=")[1]) for word in words if re.match(r"--(http|grpc|metrics)-port=", word)]
    assert len(ports) == len(set(ports)) == 3 * tp * pp
    prefixes = [word for word in words if "shm-region-prefix-name" in word]
    assert len(prefixes) == len(set(prefixes)) == tp * pp
    for rank in made.ranks:
        assert "--disable-auto-complete-config" in rank.command
        explicit = {"--model-control-mode=explicit", "--load-model=tensorrt_llm"} <= set(rank.command)
        assert explicit == (rank.rank > 0)


def test_only_rank_0_listens_beyond_the_loopback():
    made = plan(recipe(tp=2), host="0.0.0.0")
    assert "--http-address=0.0.0.0" in made.ranks[0].command
    assert "--http-address=127.0.0.1" in made.ranks[1].command
    assert "--http-address=127.0.0.1" in plan(recipe()).ranks[0].command


def test_ranks_spread_over_nodes():
    made = plan(recipe(tp=4, pp=2), nodes=2, devices=["0", "1", "2", "3"])
    assert [(rank.node, rank.device) for rank in made.ranks] == [(n, d) for n in (0, 1) for d in range(4)]
    assert refused("TF-LCH-042", recipe(tp=4), nodes=3).remedies == ["--nodes 1", "--nodes 2", "--nodes 4"]


def test_world_size_is_checked_against_the_devices():
    error = refused("TF-LCH-040", recipe(tp=4, pp=2), devices=["0", "1", "2", "3"])
    assert error.numbers == {"devices": 4, "needed": 8}
    assert error.remedies[:2] == ["--nodes 2", "build.parallel: {tp: 4, pp: 1}, and build again"]
    assert plan(recipe(tp=4, pp=2), nodes=2, devices=["0", "1", "2", "3"]).devices_a_node == 4
    assert plan(recipe(tp=4, pp=1), devices=["0", "1", "2", "3"]).devices_a_node == 4
    refused("TF-LCH-040", recipe(tp=2), devices=[])
    assert plan(recipe(tp=4), devices=["0", "1", "2", "3"]).devices_a_node == 4
    refused("TF-LCH-041", recipe(tp=2), devices=["0", "0"])


def test_named_devices_fit_the_ranks_and_are_not_booked_twice():
    sets = {"launch": "orchestrator", "parameters": {"gpu_device_ids": "0,1;2,3"}}
    made = plan(recipe(tp=2, **sets), devices=["0", "1", "2", "3"])
    assert made.device_sets == (("0", "1"), ("2", "3"))
    assert made.devices_a_node == 4
    beyond = refused("TF-LCH-040", recipe(tp=2, **sets), devices=["0", "1", "2"])
    assert "device 3" in (beyond.why or "")
    twice = {"launch": "orchestrator", "parameters": {"gpu_device_ids": "0,1;1,2"}}
    assert "device 1" in (refused("TF-LCH-041", recipe(tp=2, **twice)).why or "")
    short = {"launch": "orchestrator", "parameters": {"gpu_device_ids": "0;1"}}
    assert refused("TF-LCH-041", recipe(tp=2, **short)).remedies == ["gpu_device_ids: 0,1;2,3"]


def test_orchestrator_starts_one_server_that_spawns():
    made = plan(recipe(tp=2, launch="orchestrator"))
    assert made.environment == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    assert len(made.ranks) == 1
    assert {"--cuda-memory-pool-byte-size=0:0", "--cuda-memory-pool-byte-size=1:0"} <= set(made.ranks[0].command)
    refused("TF-LCH-043", recipe(tp=2, launch="orchestrator"), nodes=2)
    refused("TF-LCH-043", recipe("llmapi", tp=2), nodes=2)


def test_one_server_for_the_layouts_that_start_their_ranks_themselves():
    made = plan(recipe("llmapi", tp=2))
    assert (made.mode, len(made.ranks), made.devices_a_node) == ("single", 1, 2)
    assert plan(recipe("native")).devices_a_node == 0


def test_impossible_ports_and_names_are_refused():
    refused("TF-LCH-044", recipe(tp=8), first_port=65530)
    refused("TF-LCH-044", recipe(), first_port=0)
    refused("TF-LCH-045", recipe(), host="127.0.0.1; rm -rf x")


@pytest.mark.parametrize(
    "named", ["a,b", "-1,-2", "0, 1", "\u0660,\u0661", "0,1;", ",", "0,,1", " ", "0;a", "9" * 5000]
)
def test_devices_are_plain_numbers(named):
    refused("TF-LCH-046", recipe(tp=2, launch="orchestrator", parameters={"gpu_device_ids": named}))


def test_a_device_is_the_same_however_it_is_written():
    refused("TF-LCH-041", recipe(tp=2, launch="orchestrator", parameters={"gpu_device_ids": "0,00"}))


def test_only_engines_must_be_compiled_and_bundles_keep_them_there():
    assert plan(recipe()).engine == f"engine/{ENGINE_DIR}"
    assert plan(recipe("llmapi")).engine is None


def test_visible_devices_are_read_from_the_environment():
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "0, 2,MIG-abc"}) == ["0", "2", "MIG-abc"]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "-1"}) == []


def test_visible_devices_are_the_drivers_where_nothing_is_set(monkeypatch):
    show(monkeypatch, H100, RTX_4090)
    assert visible_devices({}) == ["0", "1"]
    show(monkeypatch, fails=9)
    assert visible_devices({}) is None


def compiled(bundle):
    """What a script looks for before it starts anything."""
    (bundle / "repository").mkdir(parents=True, exist_ok=True)
    (bundle / "engine" / "trtllm").mkdir(parents=True, exist_ok=True)
    (bundle / "engine" / "trtllm" / "config.json").touch()


@pytest.fixture
def machine(tmp_path):
    """Programs that write down their arguments, and a machine with two GPUs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    tell = 'printf "%s\\n" "$0" "$@"; env | grep ^TRTLLM_ || true; pwd\n'
    last = 'for word in "$@"; do file=$word; done; cat "$file"\n'
    files = {
        "mpirun": tell,
        "tritonserver": tell,
        "srun": tell + last,
        "nvidia-smi": "echo 'GPU 0: x'; echo 'GPU 1: y'\n",
    }
    for name, body in files.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}")
        (programs / name).chmod(0o755)

    def run(script, **environment):
        compiled(script.parent.parent)
        path = f"{programs}:/usr/bin:/bin"
        return subprocess.run([script], env={"PATH": path, **environment}, capture_output=True, text=True, timeout=20)

    return run


def test_scripts_start_every_rank_in_the_bundle(machine, tmp_path):
    bundle = tmp_path / "bundle"
    files = write_scripts(plan(recipe(tp=2)), bundle / "launch")
    assert [path.name for path in files] == ["mpirun.sh", "plan.json", "slurm.sh"]
    done = machine(bundle / "launch" / "mpirun.sh")
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert words[0].endswith("/mpirun")
    assert words.count("tritonserver") == 2
    assert words.count(":") == 1
    assert words[-1] == str(bundle)
    prefixes = [word.rsplit("=", 1)[1] for word in words if "shm-region" in word]
    assert re.fullmatch(r"trtllm_\d+_rank0_", prefixes[0])
    assert re.fullmatch(r"trtllm_\d+_rank1_", prefixes[1])
    slurm = machine(bundle / "launch" / "slurm.sh", SLURM_JOB_ID="77", SLURM_SUBMIT_DIR=str(bundle))
    assert slurm.returncode == 0, slurm.stderr
    lines = [line for line in slurm.stdout.splitlines() if re.match(r"\d+ tritonserver ", line)]
    assert [line.split()[0] for line in lines] == ["0", "1"]
    assert "trtllm_77_rank1_" in lines[1]
    assert "--load-model=tensorrt_llm" in lines[1]
    assert "--load-model" not in lines[0]
    assert json.loads((bundle / "launch" / "plan.json").read_text())["world_size"] == 2


def test_scripts_close_the_servers_apis_with_a_key_that_is_drawn_at_each_start(machine, tmp_path):
    made = plan(recipe(tp=2))
    for rank in made.ranks:
        closed = [word for word in rank.command if word.endswith(":admin-key=${key}")]
        assert [word.split("=")[0] for word in closed] == ["--http-restricted-api", "--grpc-restricted-protocol"]
        assert all("=shared-memory,model-repository,trace,logging:" in word for word in closed)
        assert "--http-max-input-size=16777216" in rank.command
    write_scripts(made, tmp_path / "launch")
    texts = [path.read_text() for path in (tmp_path / "launch").iterdir()]
    assert not any(re.search(r"admin-key=(?!\$\{key\})", text) for text in texts)
    drawn = set()
    for script, environment in (
        ("mpirun.sh", {}),
        ("mpirun.sh", {}),
        ("slurm.sh", {"SLURM_SUBMIT_DIR": str(tmp_path)}),
    ):
        text = machine(tmp_path / "launch" / script, **environment).stdout
        keys = re.findall(r"admin-key=([0-9a-f]{48})\b", text)
        assert len(keys) == 4 and len(set(keys)) == 1, text
        drawn.update(keys)
    assert len(drawn) == 3


def test_bodies_are_limited_by_servers_that_can():
    for made in (plan(recipe("native")), plan(recipe(version="24.10"))):
        assert not any("max-input-size" in word for word in made.ranks[0].command)
    assert "--http-max-input-size=16777216" in plan(recipe("native", version="2.62.0")).ranks[0].command


def test_the_orchestrator_script_sets_its_environment(machine, tmp_path):
    write_scripts(plan(recipe(tp=2, launch="orchestrator")), tmp_path / "launch")
    words = machine(tmp_path / "launch" / "mpirun.sh").stdout.splitlines()
    assert "TRTLLM_ORCHESTRATOR=1" in words
    assert words.count("tritonserver") == 1


def test_a_machine_with_too_few_devices_is_refused_before_anything_starts(machine, tmp_path):
    write_scripts(plan(recipe(tp=4)), tmp_path / "launch")
    done = machine(tmp_path / "launch" / "mpirun.sh")
    assert (done.returncode, done.stdout) == (3, "")
    assert "GPUs needed on this node: 4" in done.stderr
    assert "visible: 2" in done.stderr
    write_scripts(plan(recipe(tp=2)), tmp_path / "launch2")
    assert machine(tmp_path / "launch2" / "mpirun.sh", CUDA_VISIBLE_DEVICES="1").returncode == 3
    assert machine(tmp_path / "launch2" / "mpirun.sh", CUDA_VISIBLE_DEVICES="1,0").returncode == 0


@pytest.mark.parametrize("missing", ["repository", "engine/trtllm/config.json"])
def test_nothing_starts_without_the_bundle_or_its_engine(tmp_path, missing):
    compiled(tmp_path)
    write_scripts(plan(recipe()), tmp_path / "launch")
    place = tmp_path / missing
    place.rmdir() if place.is_dir() else place.unlink()
    done = subprocess.run(["sh", tmp_path / "launch" / "server.sh"], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (3, "")
    assert ("no folder repository" if missing == "repository" else "sh engine/container.sh") in done.stderr


def test_scripts_beside_the_bundle_find_it(machine, tmp_path):
    compiled(tmp_path / "bundle")
    write_scripts(plan(recipe(tp=2), nodes=1, first_port=9000), tmp_path / "two", bundle="../bundle")
    words = machine(tmp_path / "two" / "mpirun.sh").stdout.splitlines()
    assert words[-1] == str(tmp_path / "bundle") and "--http-port=9003" in words
    with pytest.raises(ForgeError, match="TF-LCH-045"):
        write_scripts(plan(recipe()), tmp_path / "three", bundle="../my bundle")
    assert not (tmp_path / "three").exists()


@pytest.mark.parametrize(
    ("ranks", "launch", "nodes"), [(1, "leader", 1), (2, "leader", 1), (2, "leader", 2), (2, "orchestrator", 1)]
)
def test_the_scripts_that_are_named_are_those_that_are_written(tmp_path, ranks, launch, nodes):
    made = plan(recipe(tp=ranks, launch=launch), nodes=nodes)
    assert sorted([*script_names(made), "plan.json"]) == [
        path.name for path in write_scripts(made, tmp_path / "launch")
    ]


def test_several_nodes_are_slurms_work(tmp_path):
    files = write_scripts(plan(recipe(tp=4, pp=2), nodes=2), tmp_path / "launch")
    assert [path.name for path in files] == ["plan.json", "slurm.sh"]
    text = (tmp_path / "launch" / "slurm.sh").read_text()
    assert text.index("#SBATCH --nodes=2") < text.index("set -eu")
    assert "--ntasks=8 --ntasks-per-node=4" in text


def test_one_server_needs_neither(machine, tmp_path):
    files = write_scripts(plan(recipe("llmapi", tp=2)), tmp_path / "launch")
    assert [path.name for path in files] == ["plan.json", "server.sh"]
    done = machine(tmp_path / "launch" / "server.sh")
    assert done.stdout.splitlines()[0].endswith("/tritonserver")


def drafted(**options):
    document = recipe(**options).model_dump()
    return Recipe.model_validate({**document, "speculation": {"method": "draft_target", "draft": "/d"}})


def test_two_engines_must_be_there(tmp_path):
    made = plan(drafted())
    assert (made.engine, made.draft_engine) == ("engine/trtllm", "engine/draft/trtllm")
    assert plan(recipe()).draft_engine is None
    (tmp_path / "repository").mkdir()
    (tmp_path / made.engine).mkdir(parents=True)
    (tmp_path / made.engine / "config.json").touch()
    write_scripts(made, tmp_path / "launch")
    done = subprocess.run(["sh", tmp_path / "launch/server.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "no compiled engine in engine/draft/trtllm: first sh engine/draft/container.sh" in done.stderr


def test_two_engines_of_several_ranks_are_the_orchestrator_s():
    refused("TF-LCH-049", drafted(tp=2))
    assert plan(drafted(tp=2, launch="orchestrator")).mode == "orchestrator"
