"""The secrets that this process can know of: values that must not appear anywhere, whatever stands around them.

Where they come from: environment variables whose names say so, logins in URLs of other variables (an index, a proxy),
``.netrc`` and the token files of the Hugging Face libraries. Files are read once.

A value is also known in Base64, alone and as a part of a longer text (``user:value``), and, when it has several lines,
by each that is long enough: logs hold lines.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, unquote

#: a shorter value would be found in ordinary words
LEAST_CHARACTERS = 8
#: the same for one line of a value of several
_LEAST_LINE = 16
_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|PASSWORD|PASSWD|PASS|PASSPHRASE|SECRET|API_?KEY|(?:ACCESS|SECRET|PRIVATE|ACCOUNT|SIGNING|AUTH)_?KEY"
    r"|ACCESS_KEY_ID|PGPASSWORD|MYSQL_PWD|SSHPASS|CONNECTION_STRING|SECRET_KEY_BASE|AUTHTOKEN)$",
    re.IGNORECASE,
)
#: names whose values may also be a word (an authentication's kind) or a path: only what mixes letters and digits counts
_PERHAPS_NAME = re.compile(r"(?:^|_)(?:PAT|AUTH|AUTHKEY|CREDENTIALS?|JWT|WEBHOOK|WEBHOOK_URL)$", re.IGNORECASE)
_MIXED = re.compile(r"(?![/~.])(?=.*[0-9])(?=.*[A-Za-z])", re.DOTALL)
_LOGIN = re.compile(r"[a-z][a-z0-9+.-]*://([^\s/@:]*):?([^\s/@]*)@", re.IGNORECASE)
_STORED_TOKEN = re.compile(r"^\s*hf_token\s*=\s*(\S+)", re.MULTILINE)
_NETRC_PASSWORD = re.compile(r"\bpassword\s+(\S+)")


def known_secrets() -> tuple[str, ...]:
    """The values and what they look like in a URL and in JSON, longest first."""
    found = []
    for name, value in os.environ.items():
        if _says_secret(name) or (_MIXED.match(value) and _says_perhaps(name)):
            found.append(value)
        elif "@" in value and "://" in value:
            found += [unquote(password) for _, password in _LOGIN.findall(value)]
    home = os.environ.get("HOME") or "~"
    found += _netrc(os.environ.get("NETRC") or f"{home}/.netrc")
    found += _token_file(os.environ.get("HF_TOKEN_PATH") or f"{_hf_home(home)}/token")
    found += _stored_tokens(os.environ.get("HF_STORED_TOKENS_PATH") or f"{_hf_home(home)}/stored_tokens")
    return _forms(tuple(found))


@lru_cache(maxsize=1024)
def _says_secret(name: str) -> bool:
    return _NAME.search(name) is not None


@lru_cache(maxsize=1024)
def _says_perhaps(name: str) -> bool:
    return _PERHAPS_NAME.search(name) is not None


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


@lru_cache(maxsize=8)
def _stored_tokens(path: str) -> tuple[str, ...]:
    return tuple(_STORED_TOKEN.findall(_small_text(path)))


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
    whole = {part for value in values for part in (value.strip(),) if len(part) >= LEAST_CHARACTERS}
    lines = {line for value in whole for part in value.splitlines() for line in (part.strip(),)}
    plain = whole | {line for line in lines if len(line) >= _LEAST_LINE and not line.startswith("-----")}
    forms = plain | {quote(value, safe="") for value in plain} | {json.dumps(value)[1:-1] for value in plain}
    forms |= {form for value in whole for form in _in_base64(value.encode("utf-8", "surrogateescape"))}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _in_base64(value: bytes) -> Iterable[str]:
    """What ``value`` is in Base64 of any text that holds it: its own digits at each of the three offsets."""
    for before in range(3):
        text = base64.b64encode(b"\0" * before + value)
        # of the first and the last group, the digits that also hold bits of what stands around
        digits = text[-(-before * 8 // 6) : (before + len(value)) * 8 // 6].decode()
        yield digits
        yield digits.replace("+", "-").replace("/", "_")
