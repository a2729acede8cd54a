"""What a finding says would work does work: every remedy of every rule is applied and the rules are run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.preflight import BIG, SMOL, report
from tests.support.public_models import public
from tests.trtforge.preflight.cases import CASES
from tests.trtforge.preflight.corpus import UNSERVED, VALID
from tests.trtforge.preflight.folder_cases import FOLDER_CASES
from tests.trtforge.preflight.settings import ENGINE, build, merged, quant, speculation
from tests.trtforge.preflight.test_corpus import PLANTED
from trtforge.ground.errors import ForgeError
from trtforge.preflight import trials
from trtforge.preflight.engine import Report
from trtforge.preflight.remedies import REMOVED, Remedy, applied, as_remedy, by_hand, joined
from trtforge.tables.features import feature_table

#: what is written before, the recipe, the facts
Start = tuple[Callable[[Path], object], dict[str, Any], dict[str, Any]]


def _nothing(folder: Path) -> None:
    pass


def _starts() -> dict[str, Start]:
    every = {**VALID, **UNSERVED}
    found: dict[str, Start] = {code: (_nothing, *cases[0]) for code, cases in CASES.items()}
    found |= {f"{code}-folder": cases[0] for code, cases in FOLDER_CASES.items()}
    for place, (name, settings, facts, code) in enumerate(PLANTED):
        valid = every[name]
        found[f"{code}-{name}-{place}"] = (valid.write, merged(valid.settings, settings), valid.facts_with(**facts))
    return found


STARTS = _starts()


def counts(found: Report) -> Counter[str]:
    return Counter(item.code for item in found.findings if not item.machine_lacks)


@pytest.mark.parametrize("name", STARTS)
def test_every_remedy_clears_its_finding_and_says_what_remains(name: str, tmp_path: Path) -> None:
    write, settings, facts = STARTS[name]
    write(tmp_path)
    before = report(settings, directory=tmp_path, **facts)
    assert before.findings
    assert before.withdrawn == (), "a rule offers what does not work"
    written = merged({"name": "x", "model": {"source": "pypi:x==1#x.gguf"}}, settings)
    for finding in before.findings:
        assert finding.ways, f"{finding.code} has no way out"
        for way in finding.ways:
            if way.by_hand:
                with pytest.raises(ValueError, match="recipe"):
                    as_remedy(way.text)
                continue
            after = report(applied(written, way.changes), directory=tmp_path, **facts)
            if finding.code in after.skipped:
                continue
            assert counts(after)[finding.code] < counts(before)[finding.code], f"{finding.code}: {way}"
            assert set(counts(after) - counts(before)) == set(way.leaves), f"{finding.code}: {way}"
            assert all(code in str(way) for code in way.leaves)


@pytest.mark.parametrize("name", STARTS)
def test_changes_that_are_offered_together_clear_every_error_together(name: str, tmp_path: Path) -> None:
    write, settings, facts = STARTS[name]
    write(tmp_path)
    before = report(settings, directory=tmp_path, **facts)
    if before.together is None:
        return
    written = merged({"name": "x", "model": {"source": "pypi:x==1#x.gguf"}}, settings)
    after = report(applied(written, before.together.changes), directory=tmp_path, **facts)
    by_hand_only = {item.code for item in before.findings if all(way.by_hand for way in item.ways)}
    stays = {item.code for item in after.findings if item.blocks}
    assert stays <= by_hand_only, "what a recipe can change is cleared"
    assert set(counts(after) - counts(before)) | stays == set(before.together.leaves)


def _pairs(number: int) -> list[tuple[str, str]]:
    random = Random(7)
    return [tuple(random.sample(sorted(CASES), 2)) for _ in range(number)]


@pytest.mark.parametrize("pair", _pairs(150), ids="-".join)
def test_no_rule_offers_what_does_not_work_beside_a_second_fault(pair: tuple[str, str]) -> None:
    one, other = (CASES[code][0] for code in pair)
    try:
        found = report(merged(one[0], other[0]), **{**one[1], **other[1]})
    except ForgeError:
        return  # the two settings make no recipe
    assert found.withdrawn == ()
    assert all(finding.ways for finding in found.findings)


def test_trials_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MOST_TRIALS", 2)
    settings, facts = CASES["TF-K4-001"][0]
    found = report(settings, **facts)
    (finding,) = [item for item in found.findings if item.code == "TF-K4-001"]
    assert len([way for way in finding.ways if not way.by_hand]) >= 3, (
        "what was not tried is offered as the rule gives it"
    )


def test_remedies_of_two_rules_about_one_width_hold_together() -> None:
    """NVFP4 of an MLP of 1856 over 8 ranks: whole groups and whole tiles ask for different widths."""
    model = replace(public("meta-llama/Llama-3.1-8B-Instruct"), ffn=1856)
    settings = merged(ENGINE, quant(format="nvfp4"), build(architectures=["sm_100"], parallel={"tp": 8}))
    found = report(settings, model=model, machine=BIG)
    by_code = {item.code: item for item in found.findings}
    assert {"TF-K4-001", "TF-K4-004"} <= set(by_code)
    # down is cut along its columns: both rules pad it to the same width, which groups of 16 and tiles of 32 fill
    assert by_code["TF-K4-001"].numbers["padded_K"]["down_proj"] == 2048
    assert by_code["TF-K4-004"].numbers["padded"]["down_proj"]["K"] == 2048
    padding = "pad the checkpoint's MLP with zeros to 2048 (rows of gate and up, columns of down)"
    assert padding in by_code["TF-K4-001"].remedies
    assert padding in by_code["TF-K4-004"].remedies
    assert found.together is not None
    after = report(applied(settings, found.together.changes), model=model, machine=BIG)
    assert not {"TF-K4-001", "TF-K4-004"} & set(counts(after))
    assert not after.blocked


def test_weights_of_a_checkpoint_are_not_excluded_by_a_recipe() -> None:
    model = public("Qwen/Qwen1.5-1.8B-Chat", prequantized="fp8")
    settings = merged(ENGINE, build(parallel={"tp": 16}))
    (finding,) = [item for item in report(settings, model=model, machine=BIG).findings if item.code == "TF-K4-004"]
    assert not any(text.startswith("quantize.exclude") for text in finding.remedies)
    assert "quant_algo of the checkpoint (fp8)" in finding.asked


def test_a_remedy_that_is_set_already_is_not_offered() -> None:
    """What the checkpoint decides is changed in the checkpoint, not by a key that says so already."""
    model = public("Qwen/Qwen2.5-7B-Instruct", prequantized="int4_awq", prequantized_kv_cache="fp8")
    found = report(merged(ENGINE, build(architectures=["sm_86"])), model=model, machine=BIG)
    (finding,) = [item for item in found.findings if item.code == "TF-K3-003"]
    assert "quantize.kv_cache: none" not in finding.remedies
    assert "kv_cache_quant_algo: FP8 in the checkpoint" in finding.asked
    assert any("hf_quant_config.json" in text for text in finding.remedies)
    assert found.withdrawn == ()


def test_lines_are_read_as_yaml_and_anything_else_is_refused() -> None:
    remedy = as_remedy("build.parallel: {tp: 2, pp: 1} with remove speculation.draft  # that is all")
    assert remedy.changes == {"build.parallel": {"tp": 2, "pp": 1}, "speculation.draft": REMOVED}
    assert remedy.to_json()["remove"] == ["speculation.draft"]
    for text in ("a smaller model", "remove it", "name: x", "trtforge run RECIPE"):
        with pytest.raises(ValueError, match="recipe"):
            as_remedy(text)
    assert by_hand("a smaller model")[0].to_json() == {"text": "a smaller model", "by_hand": True}


def test_changes_are_laid_over_what_is_written() -> None:
    written = {"build": {"parallel": {"tp": 4, "ep": 2}}, "evals": {"perplexity": {"gate": None}}}
    changed = applied(
        written,
        {"build.parallel": {"tp": 2}, "evals.perplexity.gate": {"max_increase": "5%"}, "triton.decoupled": REMOVED},
    )
    assert changed == {
        "build": {"parallel": {"tp": 2, "ep": 2}},
        "evals": {"perplexity": {"gate": {"max_increase": "5%"}}},
    }
    assert written["build"] == {"parallel": {"tp": 4, "ep": 2}}
    both = joined([Remedy("a", {"stack": "x", "build.target": "torch"}), Remedy("b", {"stack": REMOVED})])
    assert both.text == "build.target: torch with remove stack"


@pytest.mark.parametrize("written", [{"4": 4, "32": 1}, {4: 4, 32: 1}])
def test_a_key_that_is_a_number_is_changed_as_its_digits_or_as_it_is(written: dict[Any, int]) -> None:
    recipe = {"speculation": {"draft_len_schedule": written}}
    gone = applied(recipe, {"speculation.draft_len_schedule.32": REMOVED})["speculation"]["draft_len_schedule"]
    assert {int(key): value for key, value in gone.items()} == {4: 4}
    laid = applied(recipe, {"speculation.draft_len_schedule": {4: 2}})["speculation"]["draft_len_schedule"]
    assert sorted((int(key), value) for key, value in laid.items()) == [(4, 2), (32, 1)]


def test_a_finding_carries_its_remedies_as_data() -> None:
    (finding,) = report(speculation(method="lookahead"), model=SMOL).findings
    ways = finding.to_json()["ways"]
    assert {
        "text": "speculation.method: none",
        "set": {"speculation.method": "none"},
        "remove": [],
        "leaves": [],
    } in ways
    assert [str(way) for way in finding.ways] == finding.to_json()["remedies"]


def test_a_method_that_is_offered_instead_is_one_that_this_version_writes() -> None:
    table = feature_table()
    for row in table.methods:
        offered = table.method(row.target, row.instead) if row.instead else None
        assert row.instead is None or (offered is not None and offered.support == "yes"), row
