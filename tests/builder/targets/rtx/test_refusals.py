"""What the compiler says becomes codes; a worker that fails, dies or is missing leaves nothing behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from builder.targets.rtx import compiler, refusals, target
from builder.targets.rtx.compiler import Request, compile_engine
from tests.builder.targets.rtx.models import native_graph, rtx_build
from tests.support.engines import build_engine
from trtforge.ground.errors import ExitCode, ForgeError
from trtforge.ground.progress import SilentProgress
from trtforge.recipe.schema import Build, Limits, Parallel

NO_DRIVER = "Error Code 1: Cuda Runtime (cudaError 35: CUDA driver version is insufficient for CUDA runtime version)"
#: as TensorRT for RTX 1.7.1.116 said it
SAID = {
    "TF-BLD-082": (
        "build",
        "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([pass.cpp:1500: run_passes] Cannot compile for "
        "target(s) sm80, because the model contains HW-specific datatypes: fp8_e4m3. In compileGraph at "
        "/_src/optimizer/myelin/codeGenerator.cpp:2012)",
    ),
    "TF-BLD-083": ("build", "Error Code 10: Internal Error (std::bad_alloc)"),
    "TF-BLD-084": (
        "parse",
        "Invalid Node - /model/layers.0/self_attn/TensorScatter_key\nITensor::getDimensions: Error Code 3: API Usage "
        "Error (The KV cache tensor must have a static sequence length dimension.)",
    ),
    "TF-BLD-085": ("build", "Myelin (FP32 GEMM is not supported. In compileGraph)"),
    "TF-BLD-080": ("import", "libcuda.so.1: cannot open shared object file"),
}


@pytest.mark.parametrize("code", SAID)
def test_messages_become_codes(code: str) -> None:
    step, message = SAID[code]
    error = refusals.refusal(step, [message, NO_DRIVER, message], architecture="sm_80", asked="build.target: x")
    assert error.code == code and error.why and error.remedies and error.asked
    assert NO_DRIVER not in json.dumps(error.to_json())
    assert error.exit_code == (ExitCode.ENVIRONMENT if code in ("TF-BLD-080", "TF-BLD-083") else ExitCode.BAD_INPUT)


def test_the_refused_type_and_node_are_named() -> None:
    step, message = SAID["TF-BLD-082"]
    assert refusals.refusal(step, [message], architecture="sm_80", asked="").numbers["datatypes"] == ["fp8_e4m3"]
    step, message = SAID["TF-BLD-084"]
    error = refusals.refusal(step, [message], architecture="sm_80", asked="")
    assert error.numbers["node"] == "/model/layers.0/self_attn/TensorScatter_key"
    error = refusals.refusal("capability", ["SM75", "SM120"], architecture="sm_90", asked="")
    assert error.code == "TF-BLD-081" and error.numbers["known"] == ["sm_75", "sm_120"]


WORKERS = {
    "kill": (
        'import os; os.write(1, b\'{"event": "phase", "name": "p", "steps": 3}\\n\'); os.kill(os.getpid(), 9)',
        "TF-BLD-086",
    ),
    "exit": ("raise SystemExit(7)", "TF-BLD-086"),
    "libc without memory": (
        "import os; os.write(2, b'cannot allocate memory for thread-local data: ABORT\\n'); os._exit(127)",
        "TF-BLD-083",
    ),
    "Python without memory": ("raise MemoryError", "TF-BLD-083"),
    "figures of memory": (
        "import os; os.write(2, b'[INFO] memory allocation took 1 ms\\n'); os._exit(3)",
        "TF-BLD-086",
    ),
    "noise": ("print('not json'); print('[1]'); print('{}'); raise SystemExit(1)", "TF-BLD-086"),
    "lies": ("import json; print(json.dumps({'event': 'done', 'bytes': 1})); raise SystemExit(1)", "TF-BLD-086"),
    "fails": (
        "import json; print(json.dumps({'event': 'failed', 'step': 'build', 'messages': ['no']}))",
        "TF-BLD-085",
    ),
}


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_that_does_not_deliver(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, code = WORKERS[name]
    engine = tmp_path / "e.rtx"
    worker = tmp_path / "worker.py"
    worker.write_text(
        f"import sys, pathlib\nprint('said on stderr', file=sys.stderr)\n"
        f"pathlib.Path({str(engine)!r}).write_bytes(b'half')\n{source}\n"
    )
    monkeypatch.setattr(compiler, "WORKER", worker)
    request = Request(tmp_path / "m", tmp_path / "m", engine, "sm_89", ())
    with pytest.raises(ForgeError) as caught:
        compile_engine(request, tmp_path / "build.log", heap=tmp_path / "heap.so", asked="x", progress=SilentProgress())
    assert caught.value.code == code and caught.value.remedies
    assert not engine.exists()
    assert "said on stderr" in (tmp_path / "build.log").read_text()


def test_an_interrupt_ends_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker.py"
    pid = tmp_path / "pid"
    worker.write_text(
        f"import os, pathlib, time\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
        'os.write(1, b\'{"event": "phase", "name": "p", "steps": 3}\\n\')\ntime.sleep(60)\n'
    )
    monkeypatch.setattr(compiler, "WORKER", worker)

    class Interrupts(SilentProgress):
        def start(self, description: str, total: float | None = None) -> None:
            if total is not None:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_engine(
            Request(tmp_path / "m", tmp_path / "m", tmp_path / "e", "sm_89", ()),
            tmp_path / "build.log",
            heap=tmp_path / "heap.so",
            asked="x",
            progress=Interrupts(),
        )
    assert not Path(f"/proc/{pid.read_text()}").exists()


def test_progress_is_the_outermost_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        {"event": "phase", "name": "a", "steps": 2},
        {"event": "phase", "name": "inner", "steps": 9},
        {"event": "step", "name": "inner", "done": 5},
        {"event": "end", "name": "inner"},
        {"event": "step", "name": "a", "done": 1},
        {"event": "step", "name": "a", "done": 2},
        {"event": "end", "name": "a"},
        {"event": "done", "bytes": 3, "layers": 4, "version": "9"},
    ]
    worker = tmp_path / "worker.py"
    worker.write_text("".join(f"print({json.dumps(json.dumps(event))})\n" for event in events))
    monkeypatch.setattr(compiler, "WORKER", worker)
    told: list[tuple[str, float | None]] = []

    class Records(SilentProgress):
        def start(self, description: str, total: float | None = None) -> None:
            told.append((description, total))

        def advance(self, amount: float = 1.0) -> None:
            told.append(("advance", amount))

    request = Request(tmp_path / "m", tmp_path / "m", tmp_path / "e", "sm_89", ())
    result = compile_engine(request, tmp_path / "log", heap=tmp_path / "heap.so", asked="x", progress=Records())
    assert result == {"bytes": 3, "layers": 4, "version": "9"}
    name = "RTX engine for sm_89"
    assert told == [(name, None), (f"{name}: a", 2.0), ("advance", 1.0), ("advance", 1.0)]


@pytest.mark.parametrize(
    ("build", "code"),
    [
        (rtx_build(), "TF-BLD-088"),
        (rtx_build("sm_80", limits=Limits(max_seq_len=4096)), "TF-BLD-012"),
        (rtx_build("sm_80", limits=Limits(max_seq_len=64, max_input_len=64)), "TF-BLD-013"),
        (rtx_build("sm_80", parallel=Parallel(tp=2)), "TF-BLD-014"),
    ],
)
def test_bad_requests_write_nothing(tmp_path: Path, build: Build, code: str) -> None:
    graph = native_graph(tmp_path / "g")
    with pytest.raises(ForgeError) as caught:
        build_engine(graph, tmp_path / "e", name="tiny", build=build)
    assert caught.value.code == code and caught.value.exit_code == ExitCode.BAD_INPUT
    assert not (tmp_path / "e").exists()


def test_a_paged_graph_is_refused(tmp_path: Path) -> None:
    from builder.graphs.build import build_graph

    graph = native_graph(tmp_path / "g")
    build_graph(graph, graph, dtype="float16")
    with pytest.raises(ForgeError, match="TF-BLD-087"):
        build_engine(graph, tmp_path / "e", name="tiny", build=rtx_build("sm_80"))


def test_without_the_compiler_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "find_spec", lambda name: None)
    with pytest.raises(ForgeError) as caught:
        build_engine(native_graph(tmp_path / "g"), tmp_path / "e", name="tiny", build=rtx_build("sm_80"))
    assert caught.value.code == "TF-BLD-080" and caught.value.exit_code == ExitCode.ENVIRONMENT
    assert "trtforge[rtx]" in caught.value.remedies[0]
    assert not (tmp_path / "e").exists()


def test_the_parent_never_imports_the_compiler(tmp_path: Path) -> None:
    """A build's process is the worker's: ours stays free of the library and of what it does at exit."""
    import subprocess

    code = "import sys, builder.targets.rtx.target, builder.targets.rtx.compiler; print('tensorrt_rtx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
