"""The secrets that this process can know of: values that must not appear anywhere, whatever stands around them.

Where they come from: environment variables whose names say so, logins in URLs of other variables (an index, a proxy),
``.netrc`` and the token file of the Hugging Face libraries. Files are read once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, unquote

#: a shorter value would be found in ordinary words
LEAST_CHARACTERS = 8
_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|PASSWORD|PASSWD|PASS|PASSPHRASE|SECRET|API_?KEY|(?:ACCESS|SECRET|PRIVATE|ACCOUNT|SIGNING|AUTH)_?KEY"
    r"|ACCESS_KEY_ID|PGPASSWORD|MYSQL_PWD)$",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"[a-z][a-z0-9+.-]*://([^\s/@:]*):?([^\s/@]*)@", re.IGNORECASE)
_NETRC_PASSWORD = re.compile(r"\bpassword\s+(\S+)")


def known_secrets() -> tuple[str, ...]:
    """The values and what they look like in a URL and in JSON, longest first."""
    found = []
    for name, value in os.environ.items():
        if _says_secret(name):
            found.append(value)
        elif "@" in value and "://" in value:
            found += [unquote(password) for _, password in _LOGIN.findall(value)]
    home = os.environ.get("HOME") or "~"
    found += _netrc(os.environ.get("NETRC") or f"{home}/.netrc")
    found += _token_file(os.environ.get("HF_TOKEN_PATH") or f"{_hf_home(home)}/token")
    return _forms(tuple(found))


@lru_cache(maxsize=1024)
def _says_secret(name: str) -> bool:
    return _NAME.search(name) is not None


def _hf_home(home: str) -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    return os.environ.get("HF_HOME") or f"{cache}/huggingface"


@lru_cache(maxsize=8)
def _netrc(path: str) -> tuple[str, ...]:
    # netrc.netrc() refuses a file for its mode or one odd line; what it holds is a secret all the same
    return tuple(_NETRC_PASSWORD.findall(_small_text(path)))


@lru_cache(maxsize=8)
def _token_file(path: str) -> tuple[str, ...]:
    return (_small_text(path).strip(),)


def _small_text(path: str) -> str:
    try:
        file = Path(path).expanduser()
        if not file.is_file() or file.stat().st_size > 2**16:
            return ""
        return file.read_text(encoding="utf-8", errors="replace")
    except (OSError, RuntimeError, ValueError):
        return ""


@lru_cache(maxsize=8)
def _forms(values: Iterable[str]) -> tuple[str, ...]:
    plain = {part for value in values for part in (value.strip(),) if len(part) >= LEAST_CHARACTERS}
    forms = plain | {quote(value, safe="") for value in plain} | {json.dumps(value)[1:-1] for value in plain}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))
