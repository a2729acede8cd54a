"""What counts as a secret, and what must stay readable."""

from __future__ import annotations

import pytest

from trtforge.redaction import redact, redact_value


@pytest.mark.parametrize(
    "text",
    [
        "token=s3cr3tvalue",
        "HF_TOKEN: s3cr3tvalue",
        '"password": "s3cr3tvalue"',
        "api-key = s3cr3tvalue,",
        "https://me:s3cr3tvalue@host/simple",
        "Authorization: Bearer s3cr3tvalue",
        "secret='s3cr3tvalue'",
    ],
)
def test_credentials_go(text: str) -> None:
    assert "s3cr3tvalue" not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_num_tokens: 2048",
        "tokens: 8192",
        "per token: 12.5 ms",
        "bos_token: <s>",
        "tokenizer: tokenizer.json",
        "https://host/path:8000/x",
        "hf:org/name@main",
        "hf_hub is a module",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text


def test_environment_values_go_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    assert redact("x0123456789abcdefx abc") == "x***x abc"


def test_values_keep_their_types() -> None:
    assert redact_value({"a": (1, 2.5, None, True), "secret": 5}) == {"a": [1, 2.5, None, True], "secret": 5}
