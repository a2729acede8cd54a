"""The stages of ``speculate train`` where they refuse, and what they write down."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quantize.speculative.conversations import Conversation
from quantize.speculative.draft_module import DraftModule
from quantize.speculative.export import export_head
from quantize.speculative.shape import plan_head
from quantize.speculative.states import StateWriter
from tests.support.refusals import refusal
from tests.support.tiny import EOS_ID, write_tiny_llama
from trtforge.ground.progress import SilentProgress
from trtforge.pipeline.stages.drafter import draft_stages
from trtforge.pipeline.stages.drafter.card import command
from trtforge.pipeline.stages.drafter.head import by_class, check_reference
from trtforge.pipeline.stages.drafter.options import DraftOptions
from trtforge.pipeline.stages.drafter.text import DraftTextStage, turn_begins
from trtforge.pipeline.stages.drafter.training import DraftTrainStage, end_tokens

TEXT = tuple(range(5, 30))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("target") / "model", layers=7)


def test_a_head_that_computes_something_else_is_refused(target: Path, tmp_path: Path) -> None:
    head = plan_head(target, 64)
    draft = DraftModule.build(target, head, range(64), None, 0)
    draft.load({name: value.detach().to(torch.bfloat16).float() for name, value in draft.parameters().items()})
    export_head(head, draft.tensors(), draft.tokens, target, tmp_path / "head")
    taps, _ = StateWriter(target, head.taps or ()).states([TEXT])[0]
    check_reference(draft, tmp_path / "head", TEXT, taps)
    with torch.no_grad():
        draft.module.layers[0].hidden_norm.weight.mul_(1.5)
    error = refusal(check_reference, draft, tmp_path / "head", TEXT, taps)
    assert error.code == "TF-DRF-034" and error.numbers["apart"] > error.numbers["tolerance"]


def test_one_answer_is_no_text_to_train_on(target: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "states", tmp_path / "out"
    folder.mkdir()
    head = plan_head(target, 64)
    writer = StateWriter(target, head.taps or ())
    writer.write(
        [Conversation("chat", True, "", TEXT[:5], TEXT[5:])], folder / "part-00000.safetensors", SilentProgress()
    )
    inputs = {"intake": SimpleNamespace(path=target), "draft-states": SimpleNamespace(path=folder)}
    context: Any = SimpleNamespace(inputs=inputs, out=out, scratch=tmp_path / "scratch", progress=SilentProgress())
    assert refusal(DraftTrainStage(DraftOptions(draft_vocab=64)).run, context).code == "TF-DRF-033"


def test_a_target_that_answers_nothing_is_refused_after_two_parts(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import contextmanager

    from quantize.speculative.conversations import write_part

    @contextmanager
    def engine_of(*_: Any):
        yield lambda function, seed, number, answer, path: write_part(Path(path), [])

    monkeypatch.setattr("trtforge.pipeline.stages.drafter.text.engine_of", engine_of)
    inputs = {"intake": SimpleNamespace(path=target), "build": SimpleNamespace(path=tmp_path)}
    context: Any = SimpleNamespace(
        inputs=inputs, out=tmp_path / "out", scratch=tmp_path / "scratch", progress=SilentProgress()
    )
    error = refusal(DraftTextStage(DraftOptions(draft_vocab=64)).run, context)
    assert error.code == "TF-DRF-032" and error.numbers == {"prompts": 1152}


def test_a_target_that_cannot_be_trained_for_is_refused_before_it_writes_text(tmp_path: Path) -> None:
    shallow = write_tiny_llama(tmp_path / "model", layers=3)
    context: Any = SimpleNamespace(inputs={"intake": SimpleNamespace(path=shallow)})
    assert refusal(DraftTextStage(DraftOptions(draft_vocab=64)).run, context).code == "TF-DRF-029"


def test_a_made_up_turn_begins_where_the_template_has_the_users_text() -> None:
    class Tokenizer:
        chat_template: str | None = "set"

        def render_chat(self, messages: list[dict[str, str]]) -> str:
            return f"<s>user: {messages[0]['content']} </s>"

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [ord(letter) for letter in text]

    tokenizer: Any = Tokenizer()
    assert "".join(map(chr, turn_begins(tokenizer))) == "<s>user: "
    tokenizer.chat_template = None
    assert turn_begins(tokenizer) == [ord("\n")]


def test_end_tokens_are_those_of_both_configurations(target: Path) -> None:
    assert end_tokens(target, 512) == [EOS_ID]
    assert end_tokens(target, EOS_ID) == []


def test_figures_weigh_rounds_and_have_an_interval_over_prompts() -> None:
    from quantize.speculative.acceptance import chain

    texts = [chain([[True, True], [True], [True]], 2), chain([[False, False]] * 4, 2)]
    found = by_class({"chat": texts, "code": [chain([], 2)]})
    assert list(found) == ["chat"]
    chat = found["chat"]
    assert (chat["prompts"], chat["rounds"], chat["accepted_length"]) == (2, 5, 1.4)
    assert chat["interval"]["low"] < 1.4 < chat["interval"]["high"]
    assert chat["accepted_by_position"] == [0.2, 1.0]


def test_a_stage_is_run_again_for_what_it_is_made_of_alone() -> None:
    recipe: Any = SimpleNamespace(model=SimpleNamespace(source="s"))

    def changed(**asked: Any) -> list[str]:
        pairs = zip(draft_stages(DraftOptions()), draft_stages(DraftOptions(**asked)), strict=True)
        return [a.name for a, b in pairs if a.section(recipe, Path()) != b.section(recipe, Path())]

    assert changed(steps=10) == ["draft-train"]
    assert changed(tokens=10) == ["draft-text"]
    assert changed(drafts=2) == ["draft-head"]


def test_the_cards_command_repeats_the_options() -> None:
    training = {"seed": 3, "draft_vocab": 64, "steps": None, "epochs": 8.0, "time_budget": 90.0, "draft_steps": 4}
    shown = command("tiny", {"tokens": 600}, training)
    assert shown == (
        "trtforge speculate train tiny.yaml --seed 3 --tokens 600 --draft-vocab 64 --epochs 8 --time-budget 90s "
        "--draft-steps 4"
    )
