"""The registry: a module in the folder is registered; a wrong or taken code is refused when it is declared."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from triton_repo.lint.hits import RULES as LINT
from trtforge.ground.errors import ForgeError
from trtforge.preflight.engine import RULES as PREFLIGHT
from trtforge.rules.registry import Registry
from trtforge.rules.rule import Breach, Finding, Identity, Rule
from trtforge.rules.tables import link, rule_table
from trtforge.rules.waivers import justification, require_known

_MODULE = """
from trtforge.rules.rule import Breach, Rule
from {package} import RULES

def check(subject):
    if {number} in subject:
        yield Breach("it holds {number}")

RULES.declare(Rule("X-{number}", "error", "{number} is in it", check=check))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of rules on lists of numbers; its name is the folder's."""
    package = tmp_path / "some_rules"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from trtforge.rules.registry import Registry\n"
        "RULES = Registry('some_rules', codes=r'X-\\d+', order=lambda code: int(code[2:]))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name.split(".")[0] == "some_rules"]:
        del sys.modules[name]


def registry_of(folder: Path) -> Registry[Rule[list[int], Breach]]:
    from importlib import import_module

    found: Registry[Rule[list[int], Breach]] = import_module(folder.name).RULES
    return found


def test_a_module_in_the_folder_is_registered_and_nothing_names_it(folder: Path) -> None:
    for number in (10, 9):
        (folder / f"about_{number}.py").write_text(_MODULE.format(package=folder.name, number=number))
    registry = registry_of(folder)
    assert list(registry.rules) == ["X-9", "X-10"], "in the order of the codes, not of the files"
    assert list(registry.load()) == ["about_10", "about_9"]
    assert [rule.module for rule in registry.rules.values()] == ["about_9", "about_10"]
    found = [Finding(rule, breach) for rule in registry.rules.values() for breach in rule.check([10])]
    assert [(item.code, item.message, item.blocks) for item in found] == [("X-10", "it holds 10", True)]


def test_one_code_is_one_rule(folder: Path) -> None:
    for name in ("first", "second"):
        (folder / f"{name}.py").write_text(_MODULE.format(package=folder.name, number=1))
    with pytest.raises(ValueError, match="X-1 is taken by '1 is in it'"):
        registry_of(folder).rules  # noqa: B018 - asking for the rules imports their modules


def test_a_code_of_another_engine_is_refused(folder: Path) -> None:
    rule: Rule[list[int], Breach] = Rule("TF-K1-001", "error", "title", check=lambda subject: ())
    with pytest.raises(ValueError, match="TF-K1-001 is no code of some_rules"):
        registry_of(folder).declare(rule)


@pytest.mark.parametrize(("registry", "folder_name"), [(PREFLIGHT, "preflight/rules"), (LINT, "lint/checks")])
def test_every_module_of_the_two_folders_declares_rules(
    registry: Registry[Rule[object, Breach]], folder_name: str
) -> None:
    declared = {rule.module for rule in registry.rules.values()}
    assert declared == set(registry.load()), f"a file of {folder_name} without a rule"
    for name, module in registry.load().items():
        assert Path(str(module.__file__)).as_posix().endswith(f"{folder_name}/{name}.py")


def test_a_breach_says_where_it_differs_from_its_rule() -> None:
    rule = Identity("X-1", "warning", "title", "why", "https://example.org/doc")
    plain = Finding(rule, Breach("m"))
    assert (plain.severity, plain.why, plain.source) == ("warning", "why", "https://example.org/doc")
    graver = Finding(rule, Breach("m", severity="error", why="w", source="s"))
    assert (graver.severity, graver.why, graver.source, graver.blocks) == ("error", "w", "s", True)
    assert not Finding(rule, graver.breach, waived="known").blocks


def test_waivers_name_rules_that_there_are_and_say_why() -> None:
    rules = {code: Identity(code, "error", waivable=code != "TF-K1-002") for code in ("TF-K1-001", "TF-K1-002")}
    require_known({"TF-K1-001": "because"}, rules)
    assert [justification({code: "because"}, rule) for code, rule in rules.items()] == ["because", None]
    with pytest.raises(ForgeError) as unknown:
        require_known({"TF-K1-01": "because"}, rules)
    assert unknown.value.code == "TF-RCP-014" and unknown.value.remedies == ["waive TF-K1-001"]
    with pytest.raises(ForgeError, match="no justification"):
        require_known({"TF-K1-001": " "}, rules)


def test_tables_keep_their_cells_apart_and_links_are_short() -> None:
    rule: Rule[object, Breach] = Rule("X-1", "error", "a | b", check=lambda subject: ())
    assert rule_table({"Code": lambda r: r.code, "What": lambda r: r.title}, [rule]) == (
        "| Code | What |\n|---|---|\n| X-1 | a \\| b |\n"
    )
    assert link("https://github.com/o/r/issues/7") == "[r#7](https://github.com/o/r/issues/7)"
    assert link("https://github.com/o/r/blob/main/x.cc").startswith("[r]")
    assert link("https://www.example.org/x").startswith("[example.org]")
    assert link(None) == ""
