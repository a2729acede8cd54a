"""An engine that speculates, behind a real Triton server: the smoke test, the soak, the load test, what clients see."""

import json
import time
import urllib.request

import pytest

from benchmarks import soak
from evals.speed import perf_analyzer
from launcher.client import StreamClient
from launcher.local import TritonServer
from launcher.metrics_page import read_figures
from launcher.smoke import SmokeTarget, run_smoke
from runtime.offline import Engine
from runtime.sampling.params import SamplingParams
from tests.runtime import draft_support
from tests.support.thorough import often
from tests.trtforge.drafting.checkpoints import Spec
from triton_repo.layouts.native import emit
from trtforge.drafting.record import NGramSizes, SpeculationRecord
from trtforge.ground.progress import SilentProgress
from trtforge.pipeline.stages.bench import Load, measure_in_process
from trtforge.recipe.schema import Bench, Build, Limits

pytestmark = pytest.mark.e2e

NAME = "drafting"
TOKENS = 24
PROMPTS = ("What is the capital of France?", "List three fruits", "one two three one two three one two three one")
#: fewer blocks than a handful of the soak's sequences want at once
BLOCKS = 32


BUILD = {
    "limits": {"max_batch_size": 16, "max_num_tokens": 512, "max_seq_len": 512},
    "kv_cache": {"block_size": 16, "memory": "16MiB"},
}


def _ngram(folder, checkpoint):
    from builder.graphs.build import build_graph
    from tests.support.engines import build_engine

    build_graph(checkpoint, folder / "graph", block_size=16)
    record = SpeculationRecord("ngram", 6, ngram=NGramSizes(8, 2))
    build = Build.model_validate(BUILD)
    build_engine(folder / "graph", folder / "engine", name=NAME, build=build, speculation=record)


def _eagle3(folder, checkpoint):
    """A head of random weights, nearly always wrong, with n-gram drafts on top, and a vocabulary of its own."""
    spec = Spec("modelopt", taps=(2, 7), own_head=False, mapped=False, seed=5)
    target = draft_support.write_target(folder / "target", spec)
    head = draft_support.write_head(folder / "head", target, spec)
    _with_draft(folder, target, head, draft_support.speculation(ngram_on_top=True, adaptive=False))


def _draft_target(folder, checkpoint):
    """A model that drafts for itself, and so is always right."""
    target = draft_support.write_target(folder / "target", Spec("modelopt", seed=5))
    _with_draft(folder, target, target, draft_support.speculation(method="draft_target", adaptive=False))


def _with_draft(folder, target, draft, asked):
    draft_support.build(folder, target, draft, asked, limits=Limits.model_validate(BUILD["limits"]), memory="16MiB")


@pytest.fixture(scope="module", params=[_ngram, _eagle3, _draft_target], ids=["ngram", "eagle3", "draft_target"])
def engine(request, tiny_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafting")
    request.param(folder, tiny_checkpoint)
    emit(folder / "engine", folder / "repository", name=NAME)
    return folder / "engine"


@pytest.fixture(scope="module")
def expected(engine):
    with Engine.load(engine) as loaded:
        params = SamplingParams(max_tokens=TOKENS, temperature=0.0)
        return {prompt: loaded.generate(prompt, params, speculate=False)[0].text for prompt in PROMPTS}


@pytest.fixture(scope="module")
def server(engine, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "server.log"
    with TritonServer(engine.parent / "repository", log_path=log) as running:
        yield running


def _page(server):
    return f"{server.host}:{server.metrics_port}"


def test_the_smoke_test_checks_the_drafts_too(server, expected):
    target = SmokeTarget(
        grpc_url=server.grpc_url,
        http_url=server.http_url,
        metrics_url=_page(server),
        model=NAME,
        expected=expected,
        max_tokens=TOKENS,
        max_input_len=511,
        clients=32,
        speculates=True,
    )
    checks = run_smoke(target)
    assert [f"{c.name}: {c.detail}" for c in checks if not c.passed] == []
    assert len(checks) == 9
    assert "0 draft tokens" not in checks[-1].detail


def test_counts_grow_through_a_stream_and_a_request_switches_drafts_off(server):
    values = {"text_input": PROMPTS[2], "max_tokens": 64, "min_tokens": 64, "stream": True}
    with StreamClient(server.grpc_url, NAME) as client:
        client.send(values)
        seen = [
            tuple(
                int(result.as_numpy(name).reshape(-1)[0])
                for name in ("num_output_tokens", "total_draft_tokens", "total_accepted_draft_tokens")
            )
            for _, result in client.receive(60)
        ]
        off = client.ask({**values, "speculate": False})
    assert seen == sorted(seen), "every count is of the answer so far"
    tokens, drafted, accepted = seen[-1]
    assert tokens == 64
    assert drafted >= accepted > 0
    assert len(seen) < 64, "an accepted draft brings several tokens at once"
    assert (off.draft_tokens, off.accepted_tokens) == (0, 0)


def test_the_switch_and_the_counts_in_json(server):
    def generate(**more):
        body = json.dumps({"text_input": PROMPTS[2], "max_tokens": 48, "min_tokens": 48, **more}).encode()
        asked = urllib.request.Request(
            f"http://{server.http_url}/v2/models/{NAME}/generate",
            data=body,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.loads(answer.read())

    on, off, zero = generate(), generate(speculate=False), generate(num_draft_tokens=0)
    assert on["total_draft_tokens"] > 0
    assert on["acceptance_rate"] == pytest.approx(on["total_accepted_draft_tokens"] / on["total_draft_tokens"])
    assert off["total_draft_tokens"] == zero["total_draft_tokens"] == 0
    assert on["text_output"] == off["text_output"] == zero["text_output"]


def test_the_metrics_page_says_who_drafted_and_how_far(server):
    from prometheus_client.parser import text_string_to_metric_families

    with StreamClient(server.grpc_url, NAME) as client:
        assert client.ask({"text_input": PROMPTS[2], "max_tokens": 64, "min_tokens": 64}).draft_tokens
    time.sleep(0.3)  # the page is refreshed every 50 ms
    with urllib.request.urlopen(f"http://{_page(server)}/metrics", timeout=10) as answer:
        families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
    per_position = families["trtforge_spec_decode_num_accepted_tokens_per_pos"]
    assert per_position.type == "counter"
    labels = [sample.labels for sample in per_position.samples]
    assert {label["model"] for label in labels} == {NAME}
    assert "0" in {label["position"] for label in labels}
    sources = {label["source"].split("/")[0] for label in labels}
    assert sources & {"ngram", "draft_target"}
    assert sources <= {"ngram", "eagle3", "draft_target"}
    assert families["trtforge_spec_decode_verify_seconds"].samples[0].value > 0


def test_a_load_test_counts_drafts(server, engine):
    before = read_figures(_page(server))
    [level] = perf_analyzer.measure(
        grpc_url=server.grpc_url, model=NAME, prompts=[PROMPTS[2]], concurrency=(2,), requests_per_level=6,
        max_tokens=32,
    )  # fmt: skip
    grown = read_figures(_page(server))["spec_decode_num_draft_tokens_total"]
    grown -= before.get("spec_decode_num_draft_tokens_total", 0.0)
    assert level.errors == 0
    assert 0 < level.speculation["accepted_tokens"] <= level.speculation["draft_tokens"] <= grown
    assert level.speculation["accepted_length"] > 1
    with Engine.load(engine) as loaded:
        asked = Bench(concurrency=(2,), requests_per_level=6, max_tokens=32, slo=None)
        [inside] = measure_in_process(loaded, SilentProgress(), Load(asked, [PROMPTS[2]])).closed.levels
    assert inside.errors == 0
    assert inside.speculation["accepted_length"] > 1


def test_a_soak_with_drafts_leaves_nothing_behind(engine, tmp_path):
    result = soak.run(engine, blocks=BLOCKS, clients=32, seconds=often(8, 30), log=tmp_path / "server.log")
    assert result.missed == []
