"""The head's executor computes what the plain reference computes: every dialect, chunked, batched, drafting on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from runtime.executors.draft_executor import TorchDraftExecutor, open_draft
from runtime.executors.engine_dir import read_engine
from runtime.executors.torch_executor import TorchExecutor
from tests.runtime import draft_support as support
from tests.runtime.executor_support import blocks_of, make_batch, tiny_engine
from tests.trtforge.drafting.checkpoints import Spec
from trtforge.ground.errors import ForgeError

SPECS = support.specs()
CLOSE = 1e-5


def near(values: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Within 1e-5 of the largest value (states of many layers are some tens)."""
    return float((values - wanted).abs().max()) <= CLOSE * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_head_is_the_references(spec: Spec, tmp_path: Path) -> None:
    target = support.write_target(tmp_path / "target", spec)
    head = support.write_head(tmp_path / "head", target, spec)
    engine = support.build(tmp_path, target, head, support.speculation())
    executor = open_draft(engine, read_engine(engine), num_blocks=64)
    assert isinstance(executor, TorchDraftExecutor)
    reference = support.reference_of(head, target)
    (tokens, taps), (others, other_taps) = support.made(spec, 21, 2)
    blocks = [blocks_of(0, 4), blocks_of(1, 4)]
    blocks = [[b % 32 for b in blocks[0]], [32 + b % 32 for b in blocks[1]]]

    # one chunk of the first, then the rest of it beside the whole second
    logits, states = executor.execute(make_batch([(tokens[:9].tolist(), 0, blocks[0])]), taps=taps[:9])
    first = reference.join(taps)
    wanted, fed = reference.step(tokens, first)
    assert near(logits, wanted[:9]) and near(states, fed[:9])
    step = make_batch([(tokens[9:].tolist(), 9, blocks[0]), (others.tolist(), 0, blocks[1])])
    logits, states = executor.execute(step, taps=torch.cat([taps[9:], other_taps]))
    other_wanted, other_fed = reference.step(others, reference.join(other_taps))
    assert near(logits, torch.cat([wanted[9:], other_wanted]))
    assert near(states, torch.cat([fed[9:], other_fed]))

    # drafting on, both at once: each token chosen by the map, its state fed back
    runs = [(tokens, first, fed), (others, reference.join(other_taps), other_fed)]
    targets = reference.targets
    last = [int(targets[wanted[-1].argmax()]), int(targets[other_wanted[-1].argmax()])]
    feedback = torch.stack([states[len(tokens) - 10], states[-1]]).clone()
    for _ in range(4):
        step = make_batch([([token], len(run[0]), table) for token, run, table in zip(last, runs, blocks, strict=True)])
        logits, states = executor.execute(step, feedback=feedback)
        grown = []
        for row, (token, (so_far, joined, back)) in enumerate(zip(last, runs, strict=True)):
            so_far, joined = torch.cat([so_far, torch.tensor([token])]), torch.cat([joined, back[-1:]])
            wanted, back = reference.step(so_far, joined)
            assert near(logits[row], wanted[-1]) and near(states[row], back[-1])
            grown.append((so_far, joined, back))
        runs, feedback = grown, states.clone()
        last = [int(targets[row.argmax()]) for row in logits]
    mapped = executor.targets
    assert (mapped is None) is ("d2t" not in reference.tensors)
    assert mapped is None or torch.equal(torch.from_numpy(mapped), targets)
    programs = executor.describe()["programs"]
    assert {name: report["interpreted"] for name, report in programs.items()} == {"joined": {}, "fed_back": {}}
    executor.close()


def plain_spec(**flags: object) -> Spec:
    return Spec("speculators", taps=(1, 5, 8), seed=77, **flags)


def test_a_tree_in_one_pass_is_its_paths(tmp_path: Path) -> None:
    spec = plain_spec(norm_output=True)
    target = support.write_target(tmp_path / "target", spec)
    head = support.write_head(tmp_path / "head", target, spec)
    asked = support.speculation(max_draft_len=None, dynamic_tree={"depth": 3, "top_k": 3, "total": 7})
    engine = support.build(tmp_path, target, head, asked)
    executor = open_draft(engine, read_engine(engine), num_blocks=64)
    assert isinstance(executor, TorchDraftExecutor)
    reference = support.reference_of(head, target)
    ((tokens, taps),) = support.made(spec, 19)
    blocks = [b % 32 for b in blocks_of(0, 4)]
    executor.execute(make_batch([(tokens.tolist(), 0, blocks)], logits=[]), taps=taps)
    parents = [-1, -1, 0, 0, 1, 2, 4]
    nodes = torch.randint(support.VOCAB, (7,), generator=torch.Generator().manual_seed(3))
    fed = torch.randn(7, executor.hidden_size, generator=torch.Generator().manual_seed(4))
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    mask = np.zeros((7, 7), dtype=np.uint8)
    for node, path in enumerate(paths):
        mask[node, path] = 1
    step = make_batch([(nodes.tolist(), 19, blocks)])
    positions = 19 + np.array([len(path) - 1 for path in paths], dtype=np.int64)
    logits, states = executor.execute(replace(step, positions=positions, tree_mask=mask), feedback=fed)
    for node, path in enumerate(paths):
        wanted, back = reference.step(torch.cat([tokens, nodes[path]]), torch.cat([reference.join(taps), fed[path]]))
        assert near(logits[node], wanted[-1]) and near(states[node], back[-1])


def test_whole_blocks_are_copied_and_rows_without_logits_are_computed(tmp_path: Path) -> None:
    spec = plain_spec(layers=2)
    target = support.write_target(tmp_path / "target", spec)
    engine = support.build(tmp_path, target, support.write_head(tmp_path / "head", target, spec), support.speculation())
    executor = open_draft(engine, read_engine(engine), num_blocks=16)
    assert isinstance(executor, TorchDraftExecutor)
    ((tokens, taps),) = support.made(spec, 30)
    logits, states = executor.execute(make_batch([(tokens[:20].tolist(), 0, [3, 7])], logits=[]), taps=taps[:20])
    assert logits.shape == (0, support.DRAFT_VOCAB) and states.shape == (20, executor.hidden_size)
    rest = tokens[20:].tolist()
    want, _ = executor.execute(make_batch([(rest, 20, [3, 7])]), taps=taps[20:])
    want = want.clone()
    again, _ = executor.execute(make_batch([(rest, 20, [9, 11])], copies=[(3, 9), (7, 11)]), taps=taps[20:])
    assert torch.equal(again, want)
    executor.close()
    executor.close()  # the engine's owner and its context both close it
    closed = executor.describe()
    assert closed["programs"] == {} and closed["bytes"]["packed_weights"] == 0
    with pytest.raises(RuntimeError, match="closed"):
        executor.execute(make_batch([([1], 0, [0])]), taps=taps[:1])


def test_passes_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    spec = plain_spec()
    target = support.write_target(tmp_path / "target", spec)
    engine = support.build(tmp_path, target, support.write_head(tmp_path / "head", target, spec), support.speculation())
    executor = open_draft(engine, read_engine(engine), num_blocks=16)
    assert isinstance(executor, TorchDraftExecutor)
    step, width = make_batch([([1, 2], 0, [0])]), executor.tap_width
    states = torch.zeros(2, executor.hidden_size)
    for given in (
        {},
        {"taps": torch.zeros(2, width), "feedback": states},
        {"taps": torch.zeros(3, width)},
        {"feedback": torch.zeros(2, width)},
    ):
        with pytest.raises(ValueError, match=r"taps|feedback"):
            executor.execute(step, **given)
    masked = replace(step, tree_mask=np.ones((2, 2), dtype=np.uint8))
    with pytest.raises(ValueError, match="tree mask"):
        executor.execute(masked, feedback=states)


@pytest.mark.parametrize("fmt", ["none", "fp8", "nvfp4", "int4_awq"])
def test_the_taps_of_a_target_are_its_residual_streams(tmp_path: Path, fmt: str) -> None:
    """Of every format, lowered and interpreted: the states after the tapped layers, in the order of the record."""
    spec = replace(plain_spec(), target_width=64)
    with patch.object(support.checkpoints, "WIDTH", 64):
        target = support.write_target(tmp_path / "target", spec, fmt, "bfloat16")
        head = support.write_head(tmp_path / "head", target, spec)
        engine = support.build(tmp_path, target, head, support.speculation(), dtype="bfloat16")
    info = read_engine(engine)
    assert info.speculation is not None and info.speculation.taps == (2, 6, 9)
    step = make_batch([(range(3, 24), 0, blocks_of(0)), (range(30, 35), 0, blocks_of(1))])
    executor, slow = TorchExecutor(engine, num_blocks=128), TorchExecutor(engine, num_blocks=128, lowered=False)
    executor.execute(step)
    slow.execute(step)
    rows = np.array([25, 0, 7])
    taps = executor.taps(rows)
    assert taps.shape == (3, 3 * 64)
    whole = torch.cat([executor.hidden_states(f"hidden_states_{i}", 26) for i in (2, 6, 9)], dim=1)
    assert torch.equal(taps, whole[rows])
    assert (
        torch.nn.functional.cosine_similarity(taps.float(), slow.taps(rows).float()).min() > 0.9
    )  # 4-bit rounding parts
    # the map and the head are what they were beside an unquantized target
    drafted = support.config_of(engine / "draft")
    assert {linear["stored"] for linear in drafted["linears"]} == {"bfloat16"}
    stored = load_file(engine / "draft" / "model.safetensors")
    own = load_file(head / "model.safetensors")
    assert torch.equal(stored["d2t"], own["d2t"]) and torch.equal(stored["fc.weight"], own["fc.weight"].bfloat16())
    # and it drafts: taps of the target's type, states fed back
    draft = open_draft(engine, info, num_blocks=128)
    assert isinstance(draft, TorchDraftExecutor)
    first = make_batch([(range(4, 25), 0, blocks_of(0)), (range(31, 36), 0, blocks_of(1))], logits=[20, 25])
    logits, states = draft.execute(first, taps=executor.taps(np.arange(26)))
    assert bool(torch.isfinite(logits).all())
    again, _ = draft.execute(
        make_batch([([7], 21, blocks_of(0)), ([8], 5, blocks_of(1))]), feedback=states[[20, 25]].clone()
    )
    assert again.shape == (2, support.DRAFT_VOCAB) and bool(torch.isfinite(again).all())


def test_a_target_without_a_head_taps_nothing(tmp_path: Path) -> None:
    engine, _ = tiny_engine(tmp_path)
    executor = TorchExecutor(engine)
    executor.execute(make_batch([([5, 6], 0, [0])]))
    with pytest.raises(ValueError, match="taps no hidden states"):
        executor.taps(np.array([0]))
    with pytest.raises(ForgeError) as caught:
        open_draft(engine, read_engine(engine))
    assert caught.value.code == "TF-RUN-015"


def test_engines_whose_draft_is_another_ones_are_refused(tmp_path: Path) -> None:
    spec = plain_spec()
    target = support.write_target(tmp_path / "target", spec)
    engine = support.build(tmp_path, target, support.write_head(tmp_path / "head", target, spec), support.speculation())

    def refusal(folder: str, change: Callable[[dict[str, Any]], None]) -> str:
        path = engine / folder / "engine.json"
        before = path.read_text()
        record = json.loads(before)
        change(record)
        path.write_text(json.dumps(record))
        with pytest.raises(ForgeError) as caught:
            open_draft(engine, read_engine(engine))
            TorchExecutor(engine)
        path.write_text(before)
        assert caught.value.remedies
        return caught.value.code

    assert refusal("draft", lambda record: record["limits"].update(max_seq_len=64)) == "TF-RUN-015"
    assert refusal("draft", lambda record: record["drafter"].update(draft_vocab_size=0)) == "TF-RUN-001"
    assert refusal("draft", lambda record: record["drafter"].update(draft_vocab_size=49)) == "TF-RUN-013"
    assert refusal("draft", lambda record: record.pop("drafter")) == "TF-RUN-001"
    assert refusal("", lambda record: record["speculation"].update(taps=[1, 2, 3])) == "TF-RUN-013"
    assert refusal("", lambda record: record["speculation"].update(version=7)) == "TF-RUN-001"
