"""What counts as a secret, wherever it stands, and what must stay readable."""

from __future__ import annotations

import ast
import base64
import json
import random
import string
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trtforge import secret_values
from trtforge.redaction import redact, redact_value
from trtforge.secret_shapes import _PERHAPS, DETECTORS, _detectors

ROOT = Path(__file__).resolve().parents[3]
OURS = ("trtforge", "quantize", "evals", "builder", "plugins", "runtime", "triton_repo", "launcher")
DRAW = random.Random(5)
ALNUM = string.ascii_letters + string.digits
URLSAFE = ALNUM + "-_"


def _text(count: int, alphabet: str = ALNUM) -> str:
    return "".join(DRAW.choices(alphabet, k=count))


def _jwt() -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": "1", "name": "me"})]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "." + _text(43)


#: credentials by their shape; made here, so that no scanner takes this file for a leak
SHAPES: dict[str, Callable[[], str]] = {
    "hugging face": lambda: "hf_" + _text(34),
    "nvidia": lambda: "nvapi-" + _text(64, URLSAFE),
    "github": lambda: "ghp_" + _text(36),
    "github app": lambda: "ghs_" + _text(36),
    "github fine-grained": lambda: f"github_pat_{_text(22)}_{_text(59)}",
    "gitlab": lambda: "glpat-" + _text(20, URLSAFE),
    "gitlab job": lambda: "glcbt-64_" + _text(20),
    "openai": lambda: "sk-" + _text(48),
    "openai project": lambda: f"sk-proj-{_text(74, URLSAFE)}T3BlbkFJ{_text(74, URLSAFE)}",
    "anthropic": lambda: "sk-ant-api03-" + _text(93, URLSAFE),
    "pypi": lambda: "pypi-AgEIcHlwaS5vcmc" + _text(120, URLSAFE),
    "aws id": lambda: "AKIA" + _text(16, string.ascii_uppercase + string.digits),
    "wandb": lambda: "wandb_v1_" + _text(40),
    "google": lambda: "AIza" + _text(35, URLSAFE),
    "npm": lambda: "npm_" + _text(36),
    "docker": lambda: "dckr_pat_" + _text(27, URLSAFE),
    "slack": lambda: f"xoxb-{_text(12, string.digits)}-{_text(12, string.digits)}-{_text(24)}",
    "stripe": lambda: "sk_live_" + _text(24),
    "sendgrid": lambda: f"SG.{_text(22)}.{_text(43)}",
    "jwt": _jwt,
    "telegram": lambda: f"{_text(9, string.digits)}:{_text(35)}",
    "azure": lambda: "AccountKey=" + _text(86, ALNUM + "+/") + "==",
}
#: credentials that only their place shows
PLAIN: dict[str, Callable[[], str]] = {
    "wandb, old": lambda: _text(40, string.hexdigits[:16]),
    "aws secret": lambda: _text(40, ALNUM + "+"),
    "password": lambda: "s3cr3t" + _text(6),
}
PLACES: dict[str, str] = {
    "word": "the value {} was given",
    "end": "401 for {}",
    "comma": "tried {}, then gave up",
    "quoted": 'got "{}" back',
    "path": "/home/me/{}/x",
    "json": '{{"a": "{}"}}',
    "brackets": "[{}]",
    "line": "first\n{}\nlast",
}
ASSIGNED: dict[str, str] = {
    "env": "HF_TOKEN={}",
    "env of another": "export WANDB_API_KEY={} && run",
    "aws": "AWS_SECRET_ACCESS_KEY={}",
    "yaml": "api_key: {}",
    "yaml list": "  - password: {}",
    "toml": 'password = "{}"',
    "ini": "aws_secret_access_key = {}",
    "python": "token='{}'",
    "json": '{{"access_token": "{}"}}',
    "escaped json": '{{\\"hf_token\\": \\"{}\\"}}',
    "twice escaped": '"{{\\\\\\"client_secret\\\\\\": \\\\\\"{}\\\\\\"}}"',
    "repr": "{{'password': '{}', 'user': 'me'}}",
    "option": "curl --token {} https://host",
    "option with =": "login --password={} me",
    "option in a list": '["login", "--token", "{}"]',
    "bearer": "Authorization: Bearer {}",
    "basic": "authorization: Basic {}",
    "token header": '-H "Authorization: token {}"',
    "header in json": '{{"Authorization": "Bearer {}"}}',
    "own header": "X-Api-Key: {}",
    "gitlab header": "PRIVATE-TOKEN: {}",
    "cookie": "Cookie: session={}; a=b",
    "netrc": "machine api.wandb.ai login user password {}",
    "login": "https://me:{}@host/simple",
    "token login": "https://{}@github.com/org/name.git",
    "git": "git+https://oauth2:{}@host/x",
    "query": "https://host/x?a=b&token={}&c=d",
    "aws url": "https://bucket.s3.amazonaws.com/k?X-Amz-Date=2026&X-Amz-Signature={}",
    "azure url": "https://a.blob.core.windows.net/c/b?sv=2024&sig={}&se=2027",
    "url in json": "https://host/x?a=b\\u0026access_token={}\\u0026c=d",
    "sentence": "wrong password: {}",
}


@pytest.mark.parametrize("place", sorted(PLACES))
@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_credentials_are_known_by_their_shape(kind: str, place: str) -> None:
    for _ in range(5):
        secret = SHAPES[kind]()
        shown = redact(PLACES[place].format(secret))
        assert secret.removeprefix("AccountKey=") not in shown and "***" in shown
        before, after = PLACES[place].format("|").split("|")
        assert shown.startswith(before) and shown.endswith(after)


@pytest.mark.parametrize("place", sorted(ASSIGNED))
@pytest.mark.parametrize("kind", sorted({**SHAPES, **PLAIN}))
def test_credentials_are_known_by_their_place(kind: str, place: str) -> None:
    secret = {**SHAPES, **PLAIN}[kind]()
    shown = redact(ASSIGNED[place].format(secret))
    assert secret not in shown and "***" in shown, shown
    assert redact(shown) == shown


def test_a_private_key_goes_with_its_text() -> None:
    body = _text(64)
    text = f"before\n-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----\nafter"
    assert redact(text) == "before\n***\nafter"
    assert body not in redact(f"-----BEGIN PRIVATE KEY-----\n{body}\n")


def test_what_precedes_the_detectors_lets_their_credentials_through() -> None:
    """They are asked only about what may hold one: every kind of theirs in this corpus must pass."""
    detectors = dict(zip((name for _, name in DETECTORS), _detectors(), strict=True))
    known = 0
    for make in SHAPES.values():
        for _ in range(200):
            secret = make()
            if any(True for analyze in detectors.values() for _ in analyze(secret)):
                known += 1
                assert _PERHAPS.search(secret), secret
    assert known > 1500


def _our_texts() -> Iterator[tuple[str, str]]:
    for folder in OURS:
        for path in (ROOT / folder).rglob("*.py"):
            if path.name in ("redaction.py", "secret_shapes.py", "secret_values.py"):
                continue  # patterns, no sentences
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield f"{path}:{node.lineno}", node.value
                elif isinstance(node, ast.JoinedStr):
                    parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
                    yield f"{path}:{node.lineno}", "".join(map(str, parts))
    files = [*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "constraints.txt"]
    for path in [*files, *(ROOT / "trtforge").rglob("*.yaml"), *(ROOT / "configs").glob("*.yaml")]:
        yield str(path), path.read_text(encoding="utf-8")


def test_nothing_of_ours_is_masked() -> None:
    """Every text in the code, as it stands and with holes, and every document and table."""
    texts = list(_our_texts())
    assert len(texts) > 20000
    assert [(where, text) for where, text in texts if redact(text) != text] == []


@pytest.mark.parametrize(
    "text",
    [
        "max_num_tokens: 2048",
        "tokens: 8192",
        "per token: 12.5 ms",
        "bos_token: <s>",
        "eos_token=<|im_end|>",
        "image_token: <image0001>",
        "tokenizer: tokenizer.json",
        "https://host/path:8000/x",
        "https://host/path/name@v1.2",
        "ssh://git@github.com/org/name",
        "git+https://git@github.com/org/name",
        "hf:org/name@main",
        "hf:meta-llama/Llama-3.1-8B-Instruct@0e9e39f249a16976918f6564b8830bc894c89659",
        "pypi:smollm2-135m-instruct==1.0.2/model.gguf",
        "hf_hub is a module, hf_quant_config.json a file",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "0e9e39f249a16976918f6564b8830bc894c89659",
        "/home/me/.cache/huggingface/hub/models--a--b/snapshots/0e9e39f249a16976918f6564b8830bc894c89659",
        ".trtforge/artifacts/quantize/9f86d081884c7d65/model-00001-of-00002.safetensors",
        "bundles/smollm2-135m-fp8/repository/smollm2/1/model.py",
        "DeepseekV3ForCausalLM, Qwen2ForCausalLM",
        "model.layers.0.self_attn.q_proj.weight_quantizer._amax",
        "token: answers run to their limit",
        "each token: one mask a row",
        "the secret of a good name",
        "the key: value pairs of parameters",
        "stop token: 128009",
        "a basic installation, a bearer of news",
        "basic arithmetic",
        "token=1",
        "auth: none",
        "password: <your password>, --token $HF_TOKEN, token=${TOKEN}, HF_TOKEN=…",
        "2026-11-30T08:25:03.123456Z",
        "550e8400-e29b-41d4-a716-446655440000",
        "sm_80, sm_89, sm_120a, cu13.0, 10.16.1.11",
        "TF-RUN-093: the chat template refused the conversation",
        "key=model.layers.0",
        "signature: (x: int) -> str",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home without files."""
    for name in ("NETRC", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_values_of_the_environment_go_wherever_they_stand(monkeypatch: pytest.MonkeyPatch, nobody: Path) -> None:
    monkeypatch.setenv("MY_API_KEY", "correct horse/battery")
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    monkeypatch.setenv("MAX_NUM_TOKENS", "notasecret")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "notsecret2")
    monkeypatch.setenv("GPG_KEY", "notsecret3")
    assert redact("xcorrect horse/batteryx abc notasecret notsecret2 notsecret3") == (
        "x***x abc notasecret notsecret2 notsecret3"
    )
    assert redact("?q=correct%20horse%2Fbattery&b=1") == "?q=***&b=1"
    monkeypatch.setenv("MY_API_KEY", 'quo"ted\\value')
    assert redact(json.dumps({"a": 'quo"ted\\value'})) == '{"a": "***"}'


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "WANDB_API_KEY", "NGC_API_KEY", "TWINE_PASSWORD",
        "GH_TOKEN", "CI_JOB_TOKEN", "OPENAI_API_KEY", "AZURE_CLIENT_SECRET", "PGPASSWORD", "DB_PASS", "ACCOUNT_KEY",
    ],
)  # fmt: skip
def test_names_that_say_secret(monkeypatch: pytest.MonkeyPatch, nobody: Path, name: str) -> None:
    monkeypatch.setenv(name, "plainwords")
    assert redact("a plainwords b") == "a *** b"


def test_logins_of_other_variables_and_files_go_too(monkeypatch: pytest.MonkeyPatch, nobody: Path) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://me:indexpassword@host/simple")
    (nobody / ".netrc").write_text("machine a login me password netrcpassword\nmachine b\n")
    (nobody / ".cache" / "huggingface").mkdir(parents=True)
    (nobody / ".cache" / "huggingface" / "token").write_text("tokenofthefile\n")
    secret_values._netrc.cache_clear()
    secret_values._token_file.cache_clear()
    assert redact("indexpassword netrcpassword tokenofthefile") == "*** *** ***"


def test_a_home_that_cannot_be_read_hides_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", "/dev/zero")
    monkeypatch.setenv("HF_TOKEN_PATH", "x" * 5000)
    monkeypatch.setenv("HOME", "~nobodyofthatname/x")
    assert redact("HF_TOKEN=plainwords") == "HF_TOKEN=***"


def test_values_keep_their_types() -> None:
    assert redact_value({"a": (1, 2.5, None, True), "secret": 5}) == {"a": [1, 2.5, None, True], "secret": 5}


def test_empty_values_stay() -> None:
    assert redact_value({"a": [], "b": {}, "password": "", "c": [[]]}) == {"a": [], "b": {}, "password": "", "c": [[]]}


def test_keys_say_what_their_values_are() -> None:
    document = {
        "password": "plainwords", "client_secret": "x", "hf_token": "words", "Authorization": "Bearer a1b2c3d4e5f6",
        "token": "<|im_end|>", "eos_token": "</s>", "tokens": ["a"], "waive": {"TF-K15-001": "until password=hunter2x"},
    }  # fmt: skip
    assert redact_value(document) == {
        "password": "***", "client_secret": "***", "hf_token": "***", "Authorization": "***",
        "token": "<|im_end|>", "eos_token": "</s>", "tokens": ["a"], "waive": {"TF-K15-001": "until password=***"},
    }  # fmt: skip
    assert redact_value(["login", "--token", "plainwords", "--user", "me"]) == [
        "login",
        "--token",
        "***",
        "--user",
        "me",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "a" * 200000, "a-" * 100000, "token:" * 40000, "sk-" * 60000, "eyJ" * 60000, "https://" * 20000,
        "AccountKey=" * 20000, "_api_key" * 20000, "\\" * 200000 + '"', '"' * 200000, "-----BEGIN PRIVATE KEY" * 8000,
        "-----BEGIN PRIVATE KEY-----" * 8000, "a1" * 100000, "xoxb-1-" * 30000, "://a:" * 40000,
        "Authorization:" * 14000, "password " * 20000, "cookie:a" * 20000, " \t" * 100000, "?token" * 30000,
        "aws key " * 20000, "login x password" * 12000, "--a-" * 50000, "basic " * 30000, "token=\\\\" * 20000,
        "password: '" * 20000, "  - secret" * 20000, "glpat-" * 30000, "1234567890:" * 20000,
    ],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_no_text_keeps_it_busy(text: str) -> None:
    """Bounds far above what it takes, far below what a pattern that backtracks would."""
    _detectors()
    started = time.process_time()
    redact(text)
    assert time.process_time() - started < 5
