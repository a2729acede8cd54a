import sys
from pathlib import Path

from launcher import commands


def test_a_program_that_path_leads_to_is_called_by_name(monkeypatch):
    beside = Path(sys.executable).parent / "python"
    monkeypatch.setattr(commands.shutil, "which", lambda name: str(beside))
    assert commands.program("python") == "python"


def test_another_environments_program_is_not_meant(monkeypatch):
    monkeypatch.setattr(commands.shutil, "which", lambda name: "/usr/bin/python")
    called = commands.program("python")
    assert called.endswith("/python")
    assert Path(called).absolute() == Path(sys.executable).parent / "python"
    monkeypatch.setattr(commands.sys, "executable", str(Path("here/bin/python").absolute()))
    assert commands.program("python") == "python"
