"""Keeps secrets out of everything that is printed, logged or written.

Policy: a secret is known by its value (:mod:`trtforge.ground.secret_values`), by its shape
(:mod:`trtforge.ground.secret_shapes`), or by where it stands: the login of a URL, the signature of a signed one, a
header, an option, an assignment to a name that says so. Words of prose are no assignment: what follows ``token:`` in a
sentence is masked only when it looks like a credential, which mixes letters and digits. Counts (``max_num_tokens``),
digests, paths and sources stay readable.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from trtforge.ground.secret_shapes import mask_shapes
from trtforge.ground.secret_values import known_secrets

MASK = "***"
#: names of values that are secret whatever they look like
_SECRET = (
    r"_*(?:[A-Za-z0-9]+[_-])*(?:password|passwd|passphrase|(?:client[_-]?)?secret|apikey|api[_-]key|mysql_pwd"
    r"|(?:secret[_-]?access|shared[_-]?access|access|secret|private|account|signing|auth|encryption|subscription)[_-]?key)"
)
#: "token" with a word before it that makes it a credential; a model has others (eos_token, image_token)
_TOKEN = (
    r"_*(?:[A-Za-z0-9]+[_-])*(?:hf|hugging_?face|hub|access|auth|refresh|bearer|session|security|csrf|github|gh|gitlab|aws"
    r"|ngc|nvidia|nim|wandb|api|pypi|npm|openai|docker|registry|deploy|job|bot|slack|personal|private|oauth|identity|registry|id)[_-]?token"
)
_NAMES = rf"(?:{_SECRET}|{_TOKEN})"
_START = r"(?<![A-Za-z0-9_-])"
#: names that are also words and folders: only what looks like a credential is masked behind them
_PERHAPS = r"(?:[A-Za-z0-9]+[_-])*(?:pass|pwd|pat|auth|jwt|bearer|passcode|credentials?)"
#: quotes of JSON and Python, behind any number of backslashes where a text holds such a text
_QUOTE = r"\\*[\"']"
#: the quote before a value, which may be one of Python's bytes
_OPEN = r"b?\\*[\"']"
#: what stands for a value: <token>, $TOKEN, ${TOKEN}, {token}, %s, …, and what is masked already
_HOLE = r"(?![<${%*…]|\.\.\.|None\b|null\b|true\b|false\b)"
#: mixes letters and digits, and is no path, number with a unit, list or code of ours
_LOOKS = (
    r"(?!TF-[A-Z0-9]+-\d|\d[\d.]*[A-Za-z%]{1,5}\b)(?=[^\s\"'/]{0,99}\d)(?=[^\s\"'/]{0,99}[A-Za-z])"
    r"[^\s\"'\\/<>(){}\[\],;]{8,}"
)

_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.MULTILINE), replacement)
    for pattern, replacement in (
        # user:password@host; a token alone before the host, but for git's own user
        (r"(\b[a-z][a-z0-9+.-]{0,20}://)(?![\s/@:]*\*\*\*@)[^\s/@:\"']*:[^\s/@\"']+@", rf"\1{MASK}@"),
        (r"(\bhttps?://)(?!git@|\*\*\*@)[^\s/@:?#\"']+@", rf"\1{MASK}@"),
        # what signs a URL or opens it
        (
            r"((?:[?&;#]|\\u0026|&amp;|%26|%3F)(?:x-(?:amz|goog)-(?:signature|credential|security-token)|sig|signature|token|auth"
            rf"|key|code|policy|key-pair-id|jwt|{_NAMES})(?:=|%3D|\\u003d))[^&\s\"'\\<>#%]+",
            rf"\1{MASK}",
        ),
        (
            rf"({_START}(?:proxy-)?authorization(?:{_QUOTE})?\s*[:=,]\s*(?:{_OPEN})?)"
            r"(bearer|basic|token|apikey|key|negotiate|ntlm)(\s+|%20)[^\s\"'\\]+",
            rf"\1\2\3{MASK}",
        ),
        # schemes of several parameters, one of which is the proof
        (
            rf"({_START}(?:proxy-)?authorization(?:{_QUOTE})?\s*[:=,]\s*(?:{_OPEN})?)(digest|aws4-[a-z0-9-]+|hawk)"
            r"(\s+)(?=[^\r\n]{0,999}(?:response|signature|mac)=)[^\r\n]+",
            rf"\1\2\3{MASK}",
        ),
        (rf"({_START}(?:proxy-)?authorization(?:{_QUOTE})?\s*[:=]\s*(?:{_QUOTE})?){_HOLE}{_LOOKS}", rf"\1{MASK}"),
        (rf"({_START}bearer\s+){_HOLE}(?=\S{{0,99}}\d)[A-Za-z0-9._~+/=-]{{16,}}", rf"\1{MASK}"),
        (
            rf"({_START}(?:x-[a-z0-9-]*(?:token|key|secret)|(?:private|job|deploy)-token)(?:{_QUOTE})?\s*:\s*(?:{_OPEN})?)"
            rf"{_HOLE}[^\s\"'\\,;]+",
            rf"\1{MASK}",
        ),
        (rf"({_START}(?:set-)?cookie:\s*)[^\s=]+=[^\r\n\"']+", rf"\1{MASK}"),
        (r"(\blogin\s+\S+\s+(?:account\s+\S+\s+)?password\s+)\S+", rf"\1{MASK}"),  # .netrc
        # --token X, --token=X, ["--token", "X"]
        (
            rf"((?<![A-Za-z0-9_-])--(?:[a-z0-9]+[_-])*(?:token|password|passwd|passphrase|secret|api[_-]?key|access[_-]key)"
            rf"(?:=|(?:{_QUOTE}\s*,)?\s+)(?:{_QUOTE})?){_HOLE}[^\s\"'\\,\])]+",
            rf"\1{MASK}",
        ),
        # curl -u me:X
        (rf"((?<!\S)(?:-u|--(?:proxy-)?user)[ =](?:{_QUOTE})?[^\s:\"'\\]+:){_HOLE}{_LOOKS}", rf"\1{MASK}"),
        # {"name": "HF_TOKEN", "value": "X"} of a manifest, and its YAML
        (
            rf"({_START}name(?:{_QUOTE})?\s*:\s*(?:{_QUOTE})?(?:{_NAMES}|[A-Z0-9_]+_(?:TOKEN|KEY|PAT|PASS))(?:{_QUOTE})?,?"
            rf"\s+(?:{_QUOTE})?value(?:{_QUOTE})?\s*:\s*(?:{_QUOTE})?){_HOLE}[^\s\"'\\]{{4,}}",
            rf"\1{MASK}",
        ),
        (rf"(<{_NAMES}>){_HOLE}[^<>\s]{{4,}}(?=</)", rf"\1{MASK}"),
        # "password": "X" and 'password': 'X'
        (rf"({_QUOTE}{_NAMES}{_QUOTE}\s*[:=]\s*{_OPEN}){_HOLE}[^\"'\\]+", rf"\1{MASK}"),
        (rf"({_QUOTE}(?:token|{_PERHAPS}){_QUOTE}\s*[:=]\s*{_OPEN}){_HOLE}{_LOOKS}", rf"\1{MASK}"),
        # password=X, MY_TOKEN=X
        (
            rf"({_START}{_NAMES}(?:=|\\u003d)(?:{_QUOTE})?)(?!=){_HOLE}(?![\d.]+\b)[^\s\"'\\&,;)\]}}]{{4,}}",
            rf"\1{MASK}",
        ),
        (
            rf"({_START}(?:token|_*{_PERHAPS}|(?-i:[A-Z][A-Z0-9_]*(?:TOKEN|KEY|PASS|PASSWORD|AUTH)))=(?:{_QUOTE})?)(?!=){_HOLE}{_LOOKS}",
            rf"\1{MASK}",
        ),
        # password: "X"; a line that holds nothing else; anywhere else only what looks like one
        (rf"({_START}{_NAMES}\s*[:=]\s*{_QUOTE}){_HOLE}[^\s\"'\\]{{4,}}(?={_QUOTE})", rf"\1{MASK}"),
        (rf"(^[ \t]*(?:-[ \t]+)?{_SECRET}[ \t]*[:=][ \t]*){_HOLE}(?![\d.]+$)[^\s\"'\\]{{4,}}(?=[ \t]*$)", rf"\1{MASK}"),
        (
            rf"({_START}(?:{_NAMES}|token|{_PERHAPS}|(?-i:[A-Z][A-Z0-9_]*_TOKEN))\s*[:=]\s*(?:{_QUOTE})?){_HOLE}{_LOOKS}",
            rf"\1{MASK}",
        ),
    )
)
_BASIC = re.compile(rf"({_START}basic\s+)([A-Za-z0-9+/_-]{{8,}}={{0,2}})", re.IGNORECASE)
#: a text without any of these has no secret that is known by its place
_PLACES = re.compile(
    r"pass|pwd|pat[\"'\\\s]*[:=]|secret|key|token|auth|bearer|basic|cookie|://|sig|code=|policy|jwt|credential|-u "
    r"|user[ =]",
    re.IGNORECASE,
)
_KEY_ONLY = re.compile(rf"{_NAMES}|(?:proxy-)?authorization|(?:set-)?cookie", re.IGNORECASE)
_BARE_KEY = re.compile(r"token|auth", re.IGNORECASE)
_LOOKS_ONLY = re.compile(_LOOKS)
_OPTION_ONLY = re.compile(
    r"--(?:[a-z0-9]+[_-])*(?:token|password|passwd|passphrase|secret|api[_-]?key|access[_-]key)", re.IGNORECASE
)


def redact(text: str) -> str:
    """``text`` without secrets."""
    for secret in known_secrets():
        if secret in text:
            text = text.replace(secret, MASK)
    text = mask_shapes(text, MASK)
    if _PLACES.search(text):
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        text = _BASIC.sub(_login, text)
    return text


def redact_value(value: Any) -> Any:
    """A JSON-able value without secrets; keys say what their values are, and are no secrets themselves."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: MASK if _is_secret(key, item) else redact_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        # an option and its value, as a command line in a list has them
        return [
            MASK
            if isinstance(option, str) and _OPTION_ONLY.fullmatch(option) and isinstance(item, str)
            else redact_value(item)
            for option, item in zip((None, *value), value, strict=False)
        ]
    return value


def _is_secret(key: Any, value: Any) -> bool:
    if not isinstance(key, str) or not isinstance(value, str) or not value:
        return False
    return bool(_KEY_ONLY.fullmatch(key) or (_BARE_KEY.fullmatch(key) and _LOOKS_ONLY.fullmatch(value)))


def _login(match: re.Match[str]) -> str:
    """``basic`` is also a word; credentials after it are user:password in Base64."""
    try:
        decoded = base64.b64decode(match[2] + "=" * (-len(match[2]) % 4), altchars=b"-_")
    except (ValueError, binascii.Error):
        return match[0]
    return f"{match[1]}{MASK}" if b":" in decoded and decoded.isascii() else match[0]
