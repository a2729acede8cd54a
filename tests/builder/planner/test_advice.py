"""Advice on quantization: what it may never say, whatever the model, the GPU and the target, and how it decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.planner.advice import Advice, advise
from builder.planner.advice.binding import FIT, PREFILL, WEIGHTS
from builder.planner.advice.losses import expected_loss
from builder.planner.advice.rule import Accept, inside
from builder.planner.facts import collect, model_from_record
from builder.planner.hardware import Gpu, gpu, load_hardware
from builder.planner.types import Facts
from builder.planner.workload import fixed
from tests.support.public_models import public
from trtforge.cli.advise import Check
from trtforge.cli.common import preflight
from trtforge.formats.table import format_row, load_formats
from trtforge.ground.errors import ForgeError
from trtforge.models.record import Model
from trtforge.preflight.remedies import applied
from trtforge.recipe.load import LoadedRecipe, recipe_from_mapping
from trtforge.recipe.merge import deep_merge
from trtforge.tables import architecture_table
from trtforge.targets import TARGETS

LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"
SMALL = "HuggingFaceTB/SmolLM2-135M-Instruct"
#: one GPU of each architecture
CARDS = tuple({row.arch: row for row in load_hardware().gpus}.values())


def _loaded(target: str = "trtllm-llmapi", **sections: Any) -> LoadedRecipe:
    data: dict[str, Any] = {
        "name": "x",
        "model": {"source": "hf:org/model"},
        "build": {"target": target, "limits": {"max_batch_size": 32, "max_num_tokens": 2048, "max_seq_len": 2048}},
    }
    layouts = TARGETS[target].layouts
    data |= {"triton": {"layout": layouts[0]}} if layouts else {}
    return recipe_from_mapping(deep_merge(data, sections), Path.cwd())


def _facts(loaded: LoadedRecipe, model: Model, card: Gpu, *, isl: int = 1024, osl: int = 256, count: int = 1) -> Facts:
    return collect(loaded.recipe, model_from_record(model), card, count, workload=fixed(isl, osl))


def _advice(facts: Facts, accept: Accept = lambda candidate: ()) -> Advice:
    return advise(facts, model_from_record(facts.model).groups, accept)


def _with_memory(card: Gpu, gib: float) -> Gpu:
    return card.model_copy(update={"visible_mib": int(gib * 1024)})


class TestProperties:
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        name=st.sampled_from([LLAMA_8B, LLAMA_70B, "Qwen/Qwen2.5-7B-Instruct", SMALL]),
        card=st.sampled_from(CARDS),
        memory=st.floats(1, 200),
        more=st.floats(1, 4),
        batch=st.sampled_from([1, 4, 32, 256]),
        gate=st.sampled_from([None, 0.01, 0.05, 0.5]),
    )
    def test_more_memory_never_gives_fewer_bits(
        self, name: str, card: Gpu, memory: float, more: float, batch: int, gate: float | None
    ) -> None:
        perplexity = {"gate": None if gate is None else {"max_increase": gate}}
        limits = {"limits": {"max_batch_size": batch, "max_num_tokens": 2048, "max_seq_len": 2048}}
        loaded = _loaded("torch", evals={"perplexity": perplexity}, build=limits)
        found = []
        for gib in (memory, memory * more):
            try:
                found.append(_advice(_facts(loaded, public(name), _with_memory(card, gib))))
            except ForgeError as error:
                assert error.code == "TF-PLN-062"
                assert not found, "what fits a memory fits a larger one"
        if len(found) == 2:
            less, larger = (item.best for item in found)
            assert larger.bits >= less.bits
            if larger.row == less.row:
                assert (larger.kv.bits or 16) >= (less.kv.bits or 16)

    @pytest.mark.parametrize("target", sorted(TARGETS))
    @pytest.mark.parametrize("card", CARDS, ids=lambda card: card.arch)
    def test_check_accepts_what_is_advised_and_the_gpu_runs_it(self, target: str, card: Gpu) -> None:
        loaded, model = _loaded(target), public(LLAMA_8B)
        check = Check(loaded, card, model)
        try:
            found = _advice(_facts(loaded, model, card), check)
        except ForgeError as error:
            assert error.code in ("TF-PLN-061", "TF-PLN-062")
            arch = architecture_table().row(card.arch)
            assert arch is not None
            assert target not in arch.targets or error.code == "TF-PLN-062", error.numbers
            return
        data = applied(loaded.written, check.changes(found.best))
        report = preflight(recipe_from_mapping(data, Path.cwd()), model=model, machine=False)
        assert not report.blocked, [finding.message for finding in report.findings if finding.blocks]
        arch = architecture_table().row(card.arch)
        assert arch is not None
        assert arch.support(found.best.row.name, target) in ("yes", None)
        assert (
            found.best.row.weight is None
            or card.arch in found.best.row.native
            or arch.support(found.best.row.name, target)
        )
        assert found.best.kv.pool is None or arch.kv_cache[found.best.kv.name] == "yes"

    def test_what_preflight_refuses_is_not_advised(self) -> None:
        facts = _facts(_loaded("torch"), public(LLAMA_8B), gpu("h100-sxm"))
        first = _advice(facts).best.row.name
        other = _advice(facts, lambda item: ("TF-K0-000: no",) if item.row.name == first else ())
        assert other.best.row.name != first
        assert "TF-K0-000" in other.ruled_out[first]


class TestDecision:
    def test_eight_bits_on_hopper_and_no_format_without_kernels(self) -> None:
        found = _advice(_facts(_loaded("torch"), public(LLAMA_8B), gpu("h100-sxm")))
        assert found.best.row.weight is not None and found.best.row.weight.bits == 8
        assert found.best.row.activation is not None
        assert found.gains[8] < 0.9
        blackwell = next(row for row in load_formats().formats if row.native and "sm_90" not in row.native)
        assert "kernel on sm_90" in found.ruled_out[blackwell.name]

    def test_four_bits_where_eight_do_not_fit(self) -> None:
        facts = _facts(_loaded("torch"), public(LLAMA_70B), _with_memory(gpu("h100-sxm"), 60))
        found = _advice(facts)
        assert found.best.bits == 4 and found.worth == 8
        assert found.binding.what == FIT
        assert found.best.weight_bytes < 60 * 2**30 < found.plain.weight_bytes

    def test_the_gate_decides_between_bits(self) -> None:
        """Decoding one request reads weights and little else: fewer bits are quicker, and their loss is what counts."""
        one = {"limits": {"max_batch_size": 1, "max_num_tokens": 2048, "max_seq_len": 2048}}
        model, card = public(LLAMA_70B), _with_memory(gpu("l4"), 400)

        def bits(gate: str) -> int:
            loaded = _loaded("torch", build=one, evals={"perplexity": {"gate": {"max_increase": gate}}})
            found = _advice(_facts(loaded, model, card, isl=64, osl=1024))
            assert found.binding.what == WEIGHTS
            assert inside(found.best, found.gate)
            return found.best.bits

        assert bits("5%") == 4
        assert bits("1%") == 8
        assert bits("0.1%") == 16

    def test_a_format_that_only_a_small_and_a_huge_model_were_measured_in_is_worth_evaluating(self) -> None:
        found = _advice(_facts(_loaded("torch"), public(LLAMA_70B), gpu("b200")))
        four = next(item for item in found.considered if item.bits == 4)
        assert four.seconds < 0.9 * found.best.seconds and found.best.bits == 8
        assert "evaluate it to know" in found.ruled_out[four.row.name]

    def test_prompts_bind_where_answers_are_short(self) -> None:
        found = _advice(_facts(_loaded("torch"), public(LLAMA_8B), gpu("h100-sxm"), isl=2000, osl=2))
        assert found.binding.what == PREFILL
        assert sum(found.binding.shares.values()) == pytest.approx(1)

    def test_keys_with_outliers_keep_their_cache(self) -> None:
        many = {"limits": {"max_batch_size": 512, "max_num_tokens": 2048, "max_seq_len": 2048}}
        model, loaded = public(LLAMA_8B), _loaded("torch", build=many)
        facts = _facts(loaded, model, gpu("l4"))
        assert _advice(facts).best.kv.pool is not None
        biased = advise(facts, model_from_record(model).groups, lambda item: (), checked=replace(model, key_bias=120.0))
        assert biased.best.kv.pool is None
        assert "120" in biased.cache

    def test_a_pool_that_holds_what_is_asked_stays_wide(self) -> None:
        found = _advice(_facts(_loaded("torch"), public(LLAMA_8B), gpu("h200"), isl=200, osl=20))
        assert found.best.kv.pool is None
        assert found.best.requests.guaranteed >= 32

    def test_a_quantized_checkpoint_has_nothing_to_choose(self) -> None:
        name = next(row.name for row in load_formats().formats if row.weight is not None)
        model = replace(public(LLAMA_8B), prequantized=name)
        with pytest.raises(ForgeError, match="quantized already") as error:
            _advice(_facts(_loaded("torch"), model, gpu("h200")))
        assert error.value.code == "TF-PLN-060"

    def test_what_fits_nowhere_says_how_much_is_missing(self) -> None:
        with pytest.raises(ForgeError) as error:
            _advice(_facts(_loaded("torch"), public(LLAMA_70B), _with_memory(gpu("h200"), 8)))
        assert error.value.code == "TF-PLN-062"
        assert error.value.numbers["lacks"] > 20 * 2**30


class TestLosses:
    @pytest.mark.parametrize("row", load_formats().formats, ids=lambda row: row.name)
    def test_larger_models_lose_no_more(self, row: Any) -> None:
        figures = [expected_loss(row, parameters) for parameters in (10**6, 10**9, 10**10, 10**11, 10**12)]
        known = [figure.loss for figure in figures if figure is not None]
        assert known == sorted(known, reverse=True)
        assert row.weight is not None or not known

    def test_the_nearest_model_that_is_not_larger(self) -> None:
        row = format_row("fp8")
        found = expected_loss(row, 20 * 10**9)
        assert found is not None and found.parameters < 20 * 10**9 and found.loss == 0.015

    def test_a_bound_is_said_to_be_one(self) -> None:
        rounded = next(r for r in load_formats().formats if r.weight and r.activation and r.weight.bits == 4)
        alone = rounded.model_copy(update={"activation": None})
        known, bound = expected_loss(rounded, 10**9), expected_loss(alone, 10**9)
        assert known is not None and bound is not None and bound.loss == known.loss
        assert bound.metric == f"{known.metric} with rounded inputs"
