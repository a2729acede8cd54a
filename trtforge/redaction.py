"""Keeps secrets out of everything that is printed or logged.

Policy: values of keys that name a credential, credentials in URLs, Hugging Face tokens wherever they
stand, and the values of environment variables that name a credential become ``***``. Counts that
merely contain the word (``max_num_tokens``) stay readable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
_KEY = (
    r"(?:(?:hf|hugging_?face(?:_hub)?|hf_hub|access|auth|refresh|github|gitlab|aws|ngc|client)[_-]?)?"
    r"(?:token|password|passwd|secret|api[_-]?key)"
)
_KEY_ONLY = re.compile(_KEY, re.IGNORECASE)
_ENVIRONMENT = re.compile(r"(?:^|_)(?:TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY)$", re.IGNORECASE)
_HF_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{8,}")
_URL_LOGIN = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@:]*:[^\s/@]+@", re.IGNORECASE)
_BEARER = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
#: a credential is never a plain number: "per token: 12.5" stays
_ASSIGNED = re.compile(
    rf"(?<![A-Za-z0-9_])({_KEY})([\"']?\s*[:=]\s*[\"']?)(?![0-9.]+\b)([^\s\"',;}}]{{4,}})", re.IGNORECASE
)
_MIN_LENGTH = 8


def _environment_secrets() -> list[str]:
    found = {value for name, value in os.environ.items() if _ENVIRONMENT.search(name) and len(value) >= _MIN_LENGTH}
    return sorted(found, key=len, reverse=True)


def redact(text: str) -> str:
    """``text`` without secrets."""
    for secret in _environment_secrets():
        text = text.replace(secret, MASK)
    text = _HF_TOKEN.sub(MASK, text)
    text = _URL_LOGIN.sub(rf"\1{MASK}@", text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    return _ASSIGNED.sub(rf"\1\2{MASK}", text)


def redact_value(value: Any) -> Any:
    """A JSON-able value without secrets, keys included."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {
            key: MASK
            if isinstance(key, str) and _KEY_ONLY.fullmatch(key) and isinstance(item, str) and item
            else redact_value(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact_value(item) for item in value]
    return value
