"""``trtforge health`` against a real Triton server: recorded, well, and a model whose process died."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from launcher.health.asking import Server
from launcher.health.checks import check
from launcher.health.record import record
from launcher.health.recording import Recording, positions
from launcher.local import TritonServer
from launcher.stubs import lives, stubs_of
from triton_repo.layouts.native import emit
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema_serving import Serving

pytestmark = pytest.mark.e2e

PROMPTS = ("What is the capital of France?", "List three fruits")


def recorded(bundle: Path, server: TritonServer) -> Recording:
    from runtime.offline import Engine
    from runtime.sampling.params import SamplingParams

    engine = Engine.load(bundle / "engine")
    assert engine.tokenizer is not None
    answers = []
    for prompt in PROMPTS:
        ids = engine.tokenizer.encode(prompt)
        tokens = engine.generate(prompt, SamplingParams(max_tokens=8, temperature=0.0))[0].token_ids
        rows = engine.logits([*ids, *tokens[:-1]])[len(ids) - 1 :]
        answers.append((ids, positions(tokens, rows, dtype="bfloat16", noise=0.0)))
    engine.close()
    return record(
        server.http_url,
        model="tiny",
        layout="native",
        answers=answers,
        noise=0.0,
        load_seconds=server.load_seconds,
    )


@pytest.mark.parametrize("decoupled", [True, False])
def test_a_server_is_well_until_its_model_answers_otherwise_or_not_at_all(
    tiny_engine: Path, tmp_path: Path, decoupled: bool
) -> None:
    shutil.copytree(tiny_engine, tmp_path / "engine")
    serving = Serving(request_log=str(tmp_path / "requests.jsonl"))
    emit(tmp_path / "engine", tmp_path / "repository", name="tiny", decoupled=decoupled, serving=serving)
    server = TritonServer(
        tmp_path / "repository",
        log_path=tmp_path / "server.log",
        # a server that nobody watches, as one is that another launcher started
        extra_arguments=("--model-control-mode=none",),
    )
    try:
        server.start()
        assert 0 < server.wait_ready() <= server.load_seconds
        made = recorded(tmp_path, server)
        assert made.load_seconds > 0 and made.first_seconds > 0
        asked = Server(server.http_url, 10.0)
        patient = made.model_copy(  # what a busy machine does to times is not what is tested here
            update={"probes": [probe.model_copy(update={"seconds": 20.0}) for probe in made.probes]}
        )
        assert len(check(asked, "deep", "tiny", patient)) == 4
        lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
        assert {line["finish_reason"] for line in lines} == {"length"}
        assert sum(line["output_tokens"] == 4 for line in lines) >= 2 and PROMPTS[0] not in str(lines)
        with pytest.raises(ForgeError) as caught:
            check(asked, "ready", "other")
        assert caught.value.code == "TF-HLT-004"

        swapped = [
            probe.model_copy(
                update={"answer": [one.model_copy(update={"token": one.token + 1}) for one in probe.answer]}
            )
            for probe in patient.probes
        ]
        with pytest.raises(ForgeError) as caught:
            check(asked, "deep", "tiny", patient.model_copy(update={"probes": swapped}))
        assert caught.value.code == "TF-HLT-007"

        assert server.process is not None
        [stub] = stubs_of(server.process.pid)
        os.kill(stub.pid, signal.SIGKILL)
        while lives(stub):
            time.sleep(0.05)
        assert len(check(asked, "ready", "tiny")) == 2, "Triton stays ready without its model: deep is what tells"
        with pytest.raises(ForgeError) as caught:
            check(asked, "deep", "tiny", patient)
        assert caught.value.code in ("TF-HLT-006", "TF-HLT-002")
    finally:
        server.kill()
    with pytest.raises(ForgeError) as caught:
        check(Server(server.http_url, 5.0), "live")
    assert caught.value.code == "TF-HLT-001"
