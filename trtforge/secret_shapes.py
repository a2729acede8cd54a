"""Credentials that are known by their own shape, wherever they stand.

Two sources: rows of this table, for the services that trtforge's users meet, and the detectors of detect-secrets,
which follow the formats of many more. Importing those takes about a third of a second (they import requests), so they
are asked only about a text that holds something long of letters and digits mixed. Hexadecimal digests do not count.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple


class Shape(NamedTuple):
    """One kind of credential."""

    kind: str
    pattern: str
    source: str


_GITHUB = (
    "https://docs.github.com/en/authentication/keeping-your-account-and-data-secure/about-authentication-to-github"
)
SHAPES = (
    Shape("Hugging Face", r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}", "https://huggingface.co/docs/hub/security-tokens"),
    Shape("NVIDIA API key", r"\bnvapi-[A-Za-z0-9_-]{20,}",
          "https://docs.nvidia.com/ngc/gpu-cloud/ngc-user-guide/index.html"),
    Shape("GitHub", r"\bgh[pousr]_[A-Za-z0-9_]{30,}", _GITHUB),
    Shape("GitHub, fine-grained", r"\bgithub_pat_[A-Za-z0-9_]{22,}", _GITHUB),
    Shape("GitLab", r"\bgl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|oas|ffct)-[A-Za-z0-9_.-]{18,}",
          "https://docs.gitlab.com/security/tokens/"),
    Shape("OpenAI, Anthropic", r"\bsk-(?:(?:proj|svcacct|admin|ant)-[A-Za-z0-9_-]{20,}|[A-Za-z0-9]{32,})",
          "https://platform.openai.com/docs/api-reference/authentication"),
    Shape("PyPI", r"\bpypi-A[A-Za-z0-9_-]{50,}", "https://pypi.org/help/#apitoken"),
    Shape("npm", r"\bnpm_[A-Za-z0-9]{30,}", "https://docs.npmjs.com/about-access-tokens"),
    Shape("Docker Hub", r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}", "https://docs.docker.com/security/access-tokens/"),
    Shape("Weights & Biases", r"\bwandb_v\d+_[A-Za-z0-9_]{20,}", "https://docs.wandb.ai/"),
    Shape("AWS key id", r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b",
          "https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html"),
    Shape("Google", r"\b(?:AIza[0-9A-Za-z_-]{35}|ya29\.[0-9A-Za-z_-]{20,})",
          "https://cloud.google.com/docs/authentication/api-keys"),
    Shape("private key",
          r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:.*?-----END [A-Z0-9 ]{0,40}KEY(?: BLOCK)?-----|.*)",
          "https://datatracker.ietf.org/doc/html/rfc7468"),
)  # fmt: skip
_OWN = re.compile("|".join(f"(?:{shape.pattern})" for shape in SHAPES), re.DOTALL)
#: detectors of detect-secrets that know a credential by itself; those that judge entropy or words in prose are left out
DETECTORS = (
    ("aws", "AWSKeyDetector"),
    ("azure_storage_key", "AzureStorageKeyDetector"),
    ("github_token", "GitHubTokenDetector"),
    ("gitlab_token", "GitLabTokenDetector"),
    ("jwt", "JwtTokenDetector"),
    ("mailchimp", "MailchimpDetector"),
    ("openai", "OpenAIDetector"),
    ("pypi_token", "PypiTokenDetector"),
    ("sendgrid", "SendGridDetector"),
    ("slack", "SlackDetector"),
    ("square_oauth", "SquareOAuthDetector"),
    ("stripe", "StripeDetector"),
    ("telegram_token", "TelegramBotTokenDetector"),
    ("twilio", "TwilioKeyDetector"),
)
_LONG = r"(?<![0-9A-Za-z])(?![0-9a-f]+(?![0-9A-Za-z]))(?=[0-9A-Za-z]*[0-9])(?=[0-9A-Za-z]*[A-Za-z])[0-9A-Za-z]{18,}"
#: the beginnings of those whose letters and digits may come in short pieces
_BEGINNINGS = (
    r"\b[rs]k_live_|\bxox[a-z]-|\bgl[a-z]{2,5}-|\bSG\.|\bsq0csp-|hooks\.slack\.com|AccountKey=|\beyJ"
    r"|\b\d{8,10}:\S{35}|-us\d"
)
_PERHAPS = re.compile(f"{_LONG}|{_BEGINNINGS}")
#: no detector sees more of one word: their time grows with its length squared, and credentials are shorter
_WORD = re.compile(r"[^\s\"'<>`]{12,4096}")


def mask_shapes(text: str, mask: str) -> str:
    """``text`` with every credential known by its shape replaced."""
    text = _OWN.sub(mask, text)
    if _PERHAPS.search(text):
        found = {secret for word in _WORD.findall(text) if _PERHAPS.search(word) for secret in _detected(word)}
        for secret in sorted(found, key=len, reverse=True):
            text = text.replace(secret, mask)
    return text


def _detected(word: str) -> Iterator[str]:
    for analyze in _detectors():
        yield from (secret for secret in analyze(word) if secret)


@cache
def _detectors() -> tuple[Callable[[str], Iterator[str]], ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # requests', of the versions beside it
        try:
            made: list[Any] = [
                getattr(importlib.import_module(f"detect_secrets.plugins.{module}"), name)()
                for module, name in DETECTORS
            ]
        except ImportError:
            # an installation that somebody took apart: an error must be printable there too, by the table alone
            return ()
    return tuple(detector.analyze_string for detector in made)
