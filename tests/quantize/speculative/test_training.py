"""A head trained on a tiny target: the loss is ModelOpt's, a killed training ends the same, the export is what servers
compute."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quantize.speculative.acceptance import chain
from quantize.speculative.checkpoints import latest
from quantize.speculative.conversations import Conversation, part_file, write_part
from quantize.speculative.draft_module import DraftModule
from quantize.speculative.export import export_head
from quantize.speculative.judging import judge_answers
from quantize.speculative.rollout import first_logits, roll_out
from quantize.speculative.shape import choose_tokens, plan_head
from quantize.speculative.states import States, StateWriter, write_states
from quantize.speculative.training import Settings, epoch, rate, split, train
from runtime.speculation.reference import Eagle3Reference
from tests.support.refusals import refusal
from tests.support.tiny import write_tiny_llama
from trtforge.drafting.conversion import convert
from trtforge.drafting.description import Eagle3
from trtforge.drafting.inspection import inspect_folder
from trtforge.ground.progress import SilentProgress

VOCAB, DRAFTED = 512, 128


def conversations(count: int = 40) -> list[Conversation]:
    made = torch.Generator().manual_seed(5)
    found = []
    for number in range(count):
        prompt, answer = (torch.randint(low, 20, (1,), generator=made).item() for low in (3, 6))
        tokens = torch.randint(0, 200, (int(prompt + answer),), generator=made).tolist()
        found.append(
            Conversation("chat", number % 2 == 0, "", tuple(tokens[: int(prompt)]), tuple(tokens[int(prompt) :]))
        )
    return found


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("target") / "model", layers=8, tie=False)


@pytest.fixture(scope="module")
def head(target: Path) -> Eagle3:
    return plan_head(target, DRAFTED)


@pytest.fixture(scope="module")
def folder(target: Path, head: Eagle3, tmp_path_factory: pytest.TempPathFactory) -> Path:
    text, out = tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("states")
    rows = conversations()
    write_part(part_file(text, 0), rows[:25])
    write_part(part_file(text, 1), rows[25:])
    assert head.taps == (1, 3, 4)
    assert write_states(text, target, head.taps, out, SilentProgress()) == sum(len(row.tokens) for row in rows)
    assert write_states(text, target, head.taps, out, SilentProgress()) == 0  # both parts are there
    return out


def fresh(target: Path, head: Eagle3, states: States, seed: int = 0) -> DraftModule:
    tokens = choose_tokens(states.counts(VOCAB).tolist(), DRAFTED, [2])
    return DraftModule.build(target, head, tokens, states.spread(), seed)


def test_loss_and_gradients_are_those_of_modelopts_own_forward_pass(target: Path, head: Eagle3, folder: Path) -> None:
    import copy

    import modelopt.torch.speculative as speculative
    from modelopt.torch.speculative.plugins.modeling_fakebase import FakeBaseModel

    from quantize.speculative.draft_module import _served_layer
    from quantize.speculative.shape import model_options, offsets

    states = States(folder)
    draft = fresh(target, head, states)
    batch = states.batch(states.texts[:3], draft.allowed)
    rolled = roll_out(draft, batch, 3, 0.9, dtype=None)
    loss = rolled.loss * (1 + 0.9 + 0.81)  # ours is the mean of the steps, theirs the sum
    loss.backward()

    base = FakeBaseModel.from_source(str(target))
    settings = copy.deepcopy(speculative.EAGLE3_DEFAULT_CFG)
    settings["config"]["eagle_architecture_config"] |= dict(model_options(head))
    settings["config"] |= {
        "eagle_offline": True, "eagle_use_torch_compile": False, "eagle_ttt_steps": 3, "eagle_loss_decay_factor": 0.9
    }  # fmt: skip
    model = speculative.convert(base, [(settings["algorithm"], settings["config"])]).float()
    theirs = model.eagle_module
    theirs.layers[0].forward = _served_layer.__get__(theirs.layers[0])
    theirs.d2t.copy_(torch.tensor(offsets(draft.tokens)))
    theirs.load_state_dict({name: value.detach() for name, value in draft.parameters().items()}, strict=False)
    model.config.dtype = torch.float32
    model.train()
    lengths = [text.length for text in states.texts[:3]]
    there = torch.arange(batch.tokens.shape[1])[None] < torch.tensor(lengths)[:, None]
    outcome = model(
        input_ids=batch.tokens,
        attention_mask=there.long(),
        loss_mask=batch.counted.long(),
        base_model_outputs={
            "base_model_hidden_states": batch.last.float(),
            "aux_hidden_states": batch.taps.float() / draft.spread,
        },
    )
    assert torch.isclose(loss, outcome.loss, rtol=1e-4)
    outcome.loss.backward()
    for name, parameter in theirs.named_parameters():
        ours = draft.parameters()[name].grad
        assert parameter.grad is not None and ours is not None
        assert (ours - parameter.grad).abs().max() <= 1e-3 * parameter.grad.abs().max() + 1e-6, name


def test_training_learns_and_a_stopped_one_ends_with_the_same_bytes(
    target: Path, head: Eagle3, folder: Path, tmp_path: Path
) -> None:
    states = States(folder)
    settings = Settings(seed=1, steps=24, batch_tokens=256, draft_steps=3, held=4, every=0.0, learning_rate=5e-3)
    whole = fresh(target, head, states, 1)
    before = {name: value.detach().clone() for name, value in whole.parameters().items()}
    state = train(whole, states, settings, tmp_path / "whole", SilentProgress())
    assert state.step == 24 and not torch.equal(before["fc.weight"], whole.parameters()["fc.weight"])
    assert state.history[-1]["loss"] < state.history[0]["loss"]

    class Stopped(Exception):
        pass

    ticks = iter(range(10_000))

    def clock() -> float:
        if (tick := next(ticks)) > 30:
            raise Stopped
        return float(tick)

    cut = fresh(target, head, states, 1)
    with pytest.raises(Stopped):
        train(cut, states, settings, tmp_path / "cut", SilentProgress(), clock)
    found = latest(tmp_path / "cut")
    assert found is not None and 0 < found.record["step"] < 24
    again = fresh(target, head, states, 1)
    resumed = train(again, states, settings, tmp_path / "cut", SilentProgress())
    assert resumed.step == 24
    for name, value in whole.tensors().items():
        assert torch.equal(value, again.tensors()[name]), name


def test_the_clock_ends_a_training_with_a_falling_rate(
    target: Path, head: Eagle3, folder: Path, tmp_path: Path
) -> None:
    states = States(folder)
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    settings = Settings(time_budget=60.0, steps=10_000, batch_tokens=256, draft_steps=2, held=4, every=1e9)
    state = train(fresh(target, head, states), states, settings, tmp_path, SilentProgress(), clock)
    assert state.total is not None and 0 < state.step <= state.total
    assert state.seconds <= 62 and state.step > 10
    assert rate(settings, state.total - 1, state.total) < 0.2 * settings.learning_rate

    # a clock that is not reached changes nothing
    now[0] = 0.0
    short = Settings(time_budget=1e6, steps=9, batch_tokens=256, draft_steps=2, held=4, every=1e9)
    timed = fresh(target, head, states)
    assert train(timed, states, short, tmp_path / "short", SilentProgress(), clock).step == 9
    plain = fresh(target, head, states)
    train(plain, states, replace(short, time_budget=None), tmp_path / "plain", SilentProgress())
    assert all(torch.equal(value, plain.tensors()[name]) for name, value in timed.tensors().items())


def test_the_export_is_clean_and_equals_the_reference(target: Path, head: Eagle3, folder: Path, tmp_path: Path) -> None:
    states = States(folder)
    draft = fresh(target, head, states)
    with torch.no_grad():  # norms of one would hide a wrong order
        for value in draft.parameters().values():
            value.copy_(value + 0.2 * torch.randn_like(value) * value.abs().mean())
    made = tmp_path / "head"
    export_head(head, draft.tensors(), draft.tokens, target, made)
    found = inspect_folder(made, target)
    assert [item.code for item in found.findings] == []
    assert found.dialect is not None and found.dialect.name == "specforge"
    for dialect in ("speculators", "modelopt", "tensorrt-llm"):
        convert(made, dialect, tmp_path / dialect, target=target)

    rounded = fresh(target, head, states)
    rounded.spread = torch.ones_like(rounded.spread)
    rounded.load({name: value.to(torch.bfloat16).float() for name, value in draft.tensors().items()})
    text = states.texts[0]
    batch = states.batch([text], torch.ones_like(draft.allowed))
    reference = Eagle3Reference.open(made, embedding=draft.embedding)
    with torch.no_grad():
        ours = first_logits(rounded, batch.tokens, batch.taps)[0, :-1]
        theirs, _ = reference.step(batch.tokens[0, 1:], reference.join(batch.taps[0, :-1].float()))
    assert ours.abs().max() > 0.1
    assert (ours - theirs).abs().max() < 1e-4

    # a chain of drafts, each from the state that the one before it fed back
    rolled = roll_out(rounded, batch, 4, 1.0, dtype=None)
    targets = torch.tensor(draft.tokens)
    for place in range(len(rolled.places) - 4):
        at = int(rolled.places[place])
        ids = batch.tokens[0, 1 : at + 1]
        fed = reference.join(batch.taps[0, :at].float())
        for step in range(4):
            logits, out = reference.step(ids, fed)
            assert targets[rolled.drafted[step, place + step]] == reference.targets[logits[-1].argmax()]
            ids = torch.cat([ids, batch.tokens[0, at + 1 + step : at + 2 + step]])
            fed = torch.cat([fed, out[-1:]])


def test_acceptance_is_that_of_a_greedy_chain(target: Path, head: Eagle3, folder: Path) -> None:
    draft = fresh(target, head, States(folder))
    writer = StateWriter(target, head.taps or ())
    row = conversations()[0]
    found = judge_answers(draft, writer, [row], 3)[0]
    assert found.tokens == len(row.answer) - 1 and 0 < found.rounds <= found.tokens


def test_rounds_of_a_chain_start_where_the_last_one_ended() -> None:
    yes, no = True, False
    found = chain([[yes, no], [no, no], [yes, yes], [no, yes], [no, no], [yes]], 2)
    assert (found.rounds, found.tokens) == (3, 6)
    assert found.reached == (3, 2) and found.accepted == (3, 1)
    assert chain([], 2).length == 0.0


def test_batches_are_the_same_for_a_seed_and_hold_every_text_once(folder: Path) -> None:
    states = States(folder)
    held, rest = split(states.texts, 4, 0)
    assert len(held) == 4 and all(text.greedy for text in held) and not set(held) & set(rest)
    batches = epoch(rest, 0, 0, 256)
    assert batches == epoch(rest, 0, 0, 256) != epoch(rest, 1, 0, 256)
    assert sorted((t.file, t.begin) for batch in batches for t in batch) == sorted((t.file, t.begin) for t in rest)
    assert all(len(batch) * max(t.length for t in batch) <= 256 for batch in batches if len(batch) > 1)


def test_rate_warms_up_stays_and_falls_to_nothing() -> None:
    settings = Settings(learning_rate=1.0)
    rates = [rate(settings, step, 1000) for step in range(1000)]
    assert rates[0] < 0.1 and rates[100] == rates[600] == 1.0 and rates[999] < 0.01
    assert math.isclose(rate(settings, 500, None), 1.0)


def test_tokens_are_the_frequent_ones_and_those_that_end_an_answer() -> None:
    assert choose_tokens([5, 0, 9, 9, 1], 3, [1]) == [1, 2, 3]


@pytest.mark.parametrize("size", [1, 100, VOCAB + 64])
def test_a_draft_vocabulary_that_fits_no_target_is_refused(target: Path, size: int) -> None:
    error = refusal(plan_head, target, size)
    assert error.code == "TF-DRF-030" and error.remedies


def test_a_target_of_too_few_layers_is_refused(tmp_path: Path) -> None:
    shallow = write_tiny_llama(tmp_path / "model", layers=2)
    assert refusal(plan_head, shallow, DRAFTED).code == "TF-DRF-029"


def test_a_part_that_is_none_is_refused(tmp_path: Path) -> None:
    from quantize.speculative.conversations import read_part

    part = part_file(tmp_path, 0)
    part.write_text('{"kind": "chat"}\n', encoding="utf-8")
    assert refusal(read_part, part).code == "TF-DRF-031"
