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
_SCANNED = "https://docs.github.com/en/code-security/reference/secret-security/supported-secret-scanning-patterns"
_GITLEAKS = "https://github.com/gitleaks/gitleaks/blob/master/config/gitleaks.toml"
SHAPES = (
    Shape("Hugging Face", r"(?:hf|api_org)_[A-Za-z0-9]{16,}", "https://huggingface.co/docs/hub/security-tokens"),
    Shape("Hugging Face, OAuth", r"hf_(?:oauth|jwt)_(?:eyJ[A-Za-z0-9._-]{12,}|[A-Za-z0-9]{30,})",
          "https://huggingface.co/docs/hub/oauth"),
    Shape("NVIDIA API key", r"nvapi-[A-Za-z0-9_-]{20,}",
          "https://docs.nvidia.com/ngc/gpu-cloud/ngc-user-guide/index.html"),
    Shape("GitHub", r"gh[pousr]_[A-Za-z0-9_]{30,}", _GITHUB),
    Shape("GitHub, fine-grained", r"github_pat_[A-Za-z0-9_]{22,}", _GITHUB),
    Shape("GitLab", r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|oas|ffct)-[A-Za-z0-9_.-]{18,}",
          "https://docs.gitlab.com/security/tokens/"),
    Shape("OpenAI, Anthropic, OpenRouter, Langfuse",
          r"sk-(?:(?:proj|svcacct|admin|ant|or|lf)-[A-Za-z0-9_-]{20,}|[A-Za-z0-9]{32,})",
          "https://platform.openai.com/docs/api-reference/authentication"),
    Shape("Groq, Cerebras, xAI, Perplexity", r"(?:gsk_|csk-|xai-|pplx-)[A-Za-z0-9]{40,}", _SCANNED),
    Shape("Replicate", r"r8_[A-Za-z0-9]{30,}", _SCANNED),
    Shape("Fireworks", r"fw_(?=[A-Za-z]*[0-9])[A-Za-z0-9]{20,}", _SCANNED),
    Shape("Together", r"tgp_v1_[A-Za-z0-9_-]{30,}", "https://docs.together.ai/docs/api-keys-authentication"),
    Shape("Pinecone", r"pcsk_[A-Za-z0-9_]{40,}", _SCANNED),
    Shape("Tavily", r"tvly-(?:dev-|prod-)?(?=[A-Za-z]*[0-9])[A-Za-z0-9]{20,}", _SCANNED),
    Shape("ElevenLabs", r"sk_[0-9a-f]{40,}", _SCANNED),
    Shape("LangSmith", r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}", _SCANNED),
    Shape("Kaggle", r"KGAT_[0-9a-f]{32}", "https://www.kaggle.com/docs/api"),
    Shape("RunPod", r"rpa_(?=[A-Za-z]*[0-9])[A-Za-z0-9]{30,}", "https://docs.runpod.io/get-started/api-keys"),
    Shape("Modal", r"a[ks]-(?=[0-9A-Z]*[a-z])(?=[0-9a-z]*[A-Z])(?=[A-Za-z]*[0-9])[A-Za-z0-9]{22}(?![A-Za-z0-9])",
          "https://modal.com/docs/reference/modal.config"),
    Shape("PyPI", r"pypi-A[A-Za-z0-9_-]{50,}", "https://pypi.org/help/#apitoken"),
    Shape("npm", r"npm_[A-Za-z0-9]{30,}", "https://docs.npmjs.com/about-access-tokens"),
    Shape("RubyGems", r"rubygems_[0-9a-f]{48}", _GITLEAKS),
    Shape("Artifactory", r"(?:AKCp[A-Za-z0-9]{60,}|cmVmd[A-Za-z0-9]{55,})", _GITLEAKS),
    Shape("Docker Hub", r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}", "https://docs.docker.com/security/access-tokens/"),
    Shape("Weights & Biases", r"wandb_v\d+_[A-Za-z0-9_]{20,}", "https://docs.wandb.ai/"),
    Shape("AWS key id", r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b",
          "https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html"),
    Shape("Google", r"(?:AIza[0-9A-Za-z_-]{35}|ya29\.[0-9A-Za-z_-]{20,}|GOCSPX-[0-9A-Za-z_-]{28})",
          "https://cloud.google.com/docs/authentication/api-keys"),
    Shape("Microsoft Entra", r"[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}", _GITLEAKS),
    Shape("Azure DevOps", r"[A-Za-z0-9]{52}JQQJ99[A-Za-z0-9]{10}AZDO[A-Za-z0-9]{4}", _SCANNED),
    Shape("Databricks", r"dapi[0-9a-f]{32}(?:-[0-9])?", _GITLEAKS),
    Shape("DigitalOcean", r"do[opr]_v1_[0-9a-f]{64}", _GITLEAKS),
    Shape("Heroku", r"HRKU-AA[0-9A-Za-z_-]{50,}", _GITLEAKS),
    Shape("Fly", r"(?:fm[12][ar]?_|fo1_)[A-Za-z0-9+=_-]{40,}", _GITLEAKS),
    Shape("Supabase", r"sb[ps]_(?:secret_)?[0-9A-Za-z_-]{30,}", _SCANNED),
    Shape("HashiCorp", r"(?:hv[sbr]\.[A-Za-z0-9_-]{24,}|[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,})", _GITLEAKS),
    Shape("Doppler", r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9._-]{40,}", _GITLEAKS),
    Shape("Pulumi", r"pul-[0-9a-f]{40}", _GITLEAKS),
    Shape("age", r"AGE-SECRET-KEY-1[0-9A-Z]{58}", _GITLEAKS),
    Shape("Grafana", r"(?:glsa_[A-Za-z0-9]{32}_[0-9A-Fa-f]{8}|glc_[A-Za-z0-9+/=]{32,})", _GITLEAKS),
    Shape("Sentry", r"sntry[su]_[A-Za-z0-9+=_]{40,}", _GITLEAKS),
    Shape("New Relic", r"NRAK-[A-Z0-9]{27}", _GITLEAKS),
    Shape("CircleCI", r"CCI(?:PAT|PRJ)_[A-Za-z0-9]{22}_[0-9a-f]{40}", _SCANNED),
    Shape("Atlassian", r"(?:AT[AC]TT3[A-Za-z0-9_=-]{60,}|ATBB(?=[A-Za-z]*[0-9])[A-Za-z0-9]{28,})", _GITLEAKS),
    Shape("Slack", r"(?:xox[a-z](?:-[0-9A-Za-z]+){2,6}|xapp-[0-9]-[A-Za-z0-9]+-[0-9]+-[A-Za-z0-9]{20,})", _GITLEAKS),
    Shape("Telegram", r"[0-9]{8,10}:[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])", "https://core.telegram.org/bots/features"),
    Shape("Stripe", r"(?:[rs]k_(?:live|test|prod)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/]{24,})", _GITLEAKS),
    Shape("Linear, Notion", r"(?:lin_(?:api|oauth)_[A-Za-z0-9]{30,}|ntn_[A-Za-z0-9]{40,})", _GITLEAKS),
    Shape("Postman", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}", _GITLEAKS),
    Shape("Shopify", r"shp(?:at|ca|pa|ss)_[0-9A-Fa-f]{32}", _GITLEAKS),
    Shape("HubSpot", r"pat-(?:na|eu)[0-9]-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", _SCANNED),
    Shape("Mailgun", r"key-[0-9a-f]{32}\b", _GITLEAKS),
    Shape("Discord and Slack hook",
          r"(?:discord(?:app)?\.com/api/webhooks/[0-9]+/|hooks\.slack\.com/(?:services|workflows|triggers)/)"
          r"[A-Za-z0-9_/-]{20,}", _GITLEAKS),
    # with its signature, which a detector of the first two parts would leave
    Shape("JSON Web Token", r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,3}",
          "https://datatracker.ietf.org/doc/html/rfc7519"),
    Shape("private key",
          r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:.*?-----END [A-Z0-9 ]{0,40}KEY(?: BLOCK)?-----|.*)",
          "https://datatracker.ietf.org/doc/html/rfc7468"),
)  # fmt: skip
#: where a credential may begin: behind no letter or digit, unless these are an escape (of JSON, Python or a URL) or
#: the end of a terminal's colour
_BEGIN = (
    r"(?:(?<![A-Za-z0-9])|(?<=\\[abfnrtv])|(?<=\\x[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2})"
    r"|(?<=\[[0-9]m)|(?<=\[[0-9]{2}m)|(?<=;[0-9]m)|(?<=;[0-9]{2}m)|(?<=;[0-9]{3}m))"
)
_OWN = re.compile(_BEGIN + "(?:" + "|".join(f"(?:{shape.pattern})" for shape in SHAPES) + ")", re.DOTALL)
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
