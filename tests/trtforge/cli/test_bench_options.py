import json

import pytest

from trtforge.cli.bench import parse_levels, parse_rates
from trtforge.cli.main import invoke
from trtforge.ground.errors import ForgeError


def test_lists_of_numbers_are_read():
    assert parse_levels("1,4") == [1, 4]
    assert parse_rates("2,0.5") == [2.0, 0.5] and parse_rates("auto") == "auto"


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "2;5", "fast"])
def test_rates_that_are_none_are_refused(text):
    with pytest.raises(ForgeError) as caught:
        parse_rates(text)
    assert caught.value.code == "TF-BEN-024"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--trace", "/etc/hostname", "--url", "127.0.0.1:1", "--model", "m"], "TF-BEN-025"),
        (["--trace", "t.jsonl", "--url", "127.0.0.1:1", "--model", "m"], "TF-BEN-010"),
        (["--url", "127.0.0.1:1", "--model", "m", "--baseline", "t.jsonl"], "TF-BEN-027"),
        (["--url", "127.0.0.1:1", "--model", "m", "--baseline", "no-such-file"], "TF-BEN-027"),
        (["--url", "127.0.0.1:1", "--model", "m", "--tolerance", "20"], "TF-BEN-028"),
        (["smollm2-135m-fp8", "--trace", "t.jsonl"], "TF-BEN-023"),
        (["--url", "127.0.0.1:1", "--model", "m", "--rate", "auto"], "TF-RCP-012"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_measured(options, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").write_text('{"isl": 3, "osl": 2, "timestamp": 0}\n')
    assert invoke(["bench", "--json", *options]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
