"""Starts of a server near a repository: found where people write them, and judged by what they leave open."""

import json
import shlex
import subprocess
import sys

import pytest

from launcher.plans import plan
from launcher.scripts import write_scripts
from tests.launcher.test_plans import recipe
from tests.support.served_models import ECHO, write_model
from triton_repo.lint.launch_files import launch_files_near
from triton_repo.lint.run import lint_repository
from trtforge.tritonserver.launch_lines import launch_lines, of_command, open_apis, weaknesses
from trtforge.tritonserver.server_launch import GRPC_OPTION, HTTP_OPTION, closing

START = "tritonserver --model-repository=/models"
SH = f"#!/bin/sh\n# {START}\nset -e\n{START} \\\n  --http-port=8000\n"
COMPOSE = f"""services:
  triton:
    image: nvcr.io/nvidia/tritonserver:24.10-py3
    command: {START}
"""
LISTED = """services:
  triton:
    image: x
    entrypoint: [tritonserver]
    command: ["--model-store", "/models"]
"""
KUBERNETES = """spec:
  template:
    spec:
      containers:
        - name: t
          command: ["/opt/tritonserver/bin/tritonserver"]
          args:
            - --model-repository=/models
"""
SHELL_IN_YAML = f"""spec:
  containers:
    - command: ["/bin/sh", "-c"]
      args:
        - |
          ulimit -s 1048576
          exec {START}
"""
HELM = """{{- if .Values.on }}
spec:
  args: ["tritonserver", "--model-repository={{ .Values.models }}"]
{{- end }}
"""
DOCKERFILE = 'FROM nvcr.io/nvidia/tritonserver:25.12-py3\nCMD ["tritonserver", "--model-repository=/models"]\n'
UNIT = "[Service]\nExecStart=/opt/tritonserver/bin/tritonserver --model-repository=/models\n"
SLURM = f"#!/bin/bash\n#SBATCH --nodes=1\nsrun bash -c 'cd /x && {START}'\n"
FORMS = [
    ("start.sh", SH, 4),
    ("compose.yaml", COMPOSE, 4),
    ("docker-compose.yml", LISTED, 4),
    ("deployment.yaml", KUBERNETES, 6),
    ("pod.yml", SHELL_IN_YAML, 7),
    ("chart.yaml", HELM, 3),
    ("Dockerfile", DOCKERFILE, 2),
    ("triton.service", UNIT, 2),
    ("job.slurm", SLURM, 3),
]


@pytest.fixture
def repository(tmp_path):
    write_model(tmp_path / "work" / "models", "echo", ECHO)
    return tmp_path / "work" / "models"


def found(repository, code, **more):
    return [f for f in lint_repository(repository, near=True, **more).findings if f.code == code]


@pytest.mark.parametrize(("name", "text", "line"), FORMS, ids=[form[0] for form in FORMS])
def test_a_start_is_found_in_every_form_and_what_its_remedies_say_clears_it(repository, name, text, line):
    path = repository.parent / name
    path.write_text(text)
    findings = found(repository, "TF-TRI-260")
    assert [(f.path, f.line, f.severity) for f in findings] == [(str(path), line, "warning")] * 2
    assert "shared-memory" in findings[0].message and "HTTP" in findings[0].message and "gRPC" in findings[1].message
    remedies = [shlex.split(finding.remedy)[0] for finding in findings]
    [launch] = launch_lines(text, name)
    closed = of_command(["tritonserver", *launch.words, *remedies])
    assert closed is not None and weaknesses(closed) == []


@pytest.mark.parametrize("place", ["models", ".", "launch", "deploy", "k8s"])
def test_starts_are_looked_for_beside_the_repository(repository, place):
    path = repository.parent / place / "start.sh"
    path.parent.mkdir(exist_ok=True)
    path.write_text(SH)
    assert launch_files_near(repository) == [path]
    assert len(found(repository, "TF-TRI-260")) == 2
    assert lint_repository(repository).findings == (), "who does not ask for starts hears nothing of them"


def test_a_file_that_is_named_is_looked_at_and_nothing_else(repository, tmp_path):
    (repository.parent / "start.sh").write_text(SH)
    elsewhere = tmp_path / "run.txt"
    elsewhere.write_text(f"{START} {' '.join(closing('$KEY'))}\n")
    assert lint_repository(repository, launch_files=[elsewhere], near=True).findings == ()
    elsewhere.write_text("echo nothing\n")
    [note] = found(repository, "TF-TRI-262", launch_files=[elsewhere])
    assert note.severity == "note"
    [error] = found(repository, "TF-TRI-262", launch_files=[tmp_path / "missing.sh"])
    assert error.severity == "error"


def test_the_holes_of_an_image_are_named(repository):
    (repository.parent / "compose.yaml").write_text(COMPOSE)
    [finding] = found(repository, "TF-TRI-261")
    assert finding.line == 3 and "CVE-2025-23310" in finding.message and "26.07" in finding.remedy
    (repository.parent / "compose.yaml").write_text(COMPOSE.replace("24.10", "26.11"))
    assert found(repository, "TF-TRI-261") == []


@pytest.mark.parametrize(
    "made", [recipe(tp=2), recipe(launch="orchestrator", tp=2), recipe("llmapi"), recipe("native")]
)
def test_our_own_scripts_are_clean(repository, made):
    write_scripts(plan(made), repository.parent / "launch")
    assert lint_repository(repository, near=True).findings == ()
    for path in (repository.parent / "launch").glob("*.sh"):
        assert launch_lines(path.read_text(), path.name), "no start was found in our own script"


def test_what_is_switched_off_is_not_open():
    def opened(*words):
        launch = of_command(["/usr/bin/tritonserver", "--model-repository", "/m", *words])
        assert launch is not None
        return open_apis(launch, HTTP_OPTION), open_apis(launch, GRPC_OPTION)

    three = ["shared-memory", "trace", "logging"]
    assert opened() == (three, three)
    assert opened("--allow-grpc=false") == (three, [])
    assert opened("--allow-http", "0", "--allow-grpc", "False") == ([], [])
    assert opened("--model-control-mode=explicit")[0] == ["shared-memory", "model-repository", "trace", "logging"]
    assert opened("--model-control-mode", "poll") == (three, three)
    both = f"{HTTP_OPTION}=trace:k=v", f"{HTTP_OPTION}=logging,shared-memory:k2=v"
    assert opened(*both) == ([], three)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (f"{HTTP_OPTION}=shared-memory,trace,logging,model-repository:admin-key=hunter2", "stands in the text"),
        ("--allow-sagemaker=true", "around"),
        ("--allow-vertex-ai=1", "around"),
    ],
)
def test_keys_in_manifests_and_ways_around_are_named(word, says):
    launch = of_command(["tritonserver", "--model-repository=/m", *closing("$KEY"), word])
    assert launch is not None
    assert [says in weakness.what for weakness in weaknesses(launch)] == [True]


@pytest.mark.parametrize(
    "text",
    [
        "cp -r /opt/tritonserver /x\n",
        "docker pull nvcr.io/nvidia/tritonserver:24.10-py3\n",
        "tritonserver --help\n",
        "which tritonserver --model-repository-x=1\n",
        "a: &a [*a]\ntritonserver: 1\n",
        "'" * 3 + "tritonserver\n",
        "\\\n\\\n tritonserver\\",
    ],
)
@pytest.mark.parametrize("name", ["x.sh", "x.yaml", "Dockerfile"])
def test_what_starts_no_server_is_left_alone(text, name):
    assert launch_lines(text, name) == []


def test_aliases_that_multiply_end(repository):
    lines = ["a: &a [tritonserver, --model-repository=/m]"]
    lines += [f"{chr(98 + i)}: &{chr(98 + i)} [" + ", ".join([f"*{chr(97 + i)}"] * 9) + "]" for i in range(12)]
    (repository.parent / "bomb.yaml").write_text("\n".join(lines))
    assert found(repository, "TF-TRI-260") == []


def test_the_command_takes_a_launch_file(repository, tmp_path):
    script = tmp_path / "x.sh"
    script.write_text(SH)
    words = [sys.executable, "-m", "trtforge", "triton", "lint", str(repository), "--launch", str(script), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert {finding["code"] for finding in json.loads(done.stdout)["findings"]} == {"TF-TRI-260"}
