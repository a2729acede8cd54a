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

from trtforge.ground import secret_values
from trtforge.ground.redaction import redact, redact_value
from trtforge.ground.secret_shapes import _OWN, _PERHAPS, DETECTORS, _detectors

ROOT = Path(__file__).resolve().parents[4]
OURS = ("trtforge", "quantize", "evals", "builder", "plugins", "runtime", "triton_repo", "launcher")
DRAW = random.Random(5)
ALNUM = string.ascii_letters + string.digits
URLSAFE = ALNUM + "-_"


def _text(count: int, alphabet: str = ALNUM) -> str:
    return "".join(DRAW.choices(alphabet, k=count))


HEX = string.hexdigits[:16]


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
    "hugging face oauth": lambda: "hf_oauth_" + _jwt(),
    "openrouter": lambda: "sk-or-v1-" + _text(64, HEX),
    "langfuse": lambda: f"sk-lf-{_text(8, HEX)}-{_text(4, HEX)}-{_text(4, HEX)}-{_text(4, HEX)}-{_text(12, HEX)}",
    "groq": lambda: "gsk_" + _text(52),
    "xai": lambda: "xai-" + _text(80),
    "perplexity": lambda: "pplx-" + _text(48),
    "cerebras": lambda: "csk-" + _text(48),
    "replicate": lambda: "r8_" + _text(37),
    "fireworks": lambda: "fw_7" + _text(23),
    "together": lambda: "tgp_v1_" + _text(43, URLSAFE),
    "pinecone": lambda: f"pcsk_{_text(6)}_{_text(58)}",
    "tavily": lambda: "tvly-dev-3" + _text(31),
    "elevenlabs": lambda: "sk_" + _text(48, HEX),
    "langsmith": lambda: f"lsv2_pt_{_text(32, HEX)}_{_text(10, HEX)}",
    "kaggle": lambda: "KGAT_" + _text(32, HEX),
    "runpod": lambda: "rpa_4" + _text(40),
    "modal": lambda: "as-aB3" + _text(19),
    "rubygems": lambda: "rubygems_" + _text(48, HEX),
    "artifactory": lambda: "AKCp8" + _text(68),
    "google client": lambda: "GOCSPX-" + _text(28, URLSAFE),
    "entra": lambda: f"{_text(3)}8Q~{_text(34)}",
    "azure devops": lambda: f"{_text(52)}JQQJ99{_text(10)}AZDO{_text(4)}",
    "databricks": lambda: "dapi" + _text(32, HEX),
    "digitalocean": lambda: "dop_v1_" + _text(64, HEX),
    "heroku": lambda: "HRKU-AA" + _text(58, URLSAFE),
    "fly": lambda: "fm2_" + _text(100),
    "supabase": lambda: "sbp_" + _text(40, HEX),
    "vault": lambda: "hvs." + _text(90),
    "terraform": lambda: f"{_text(14)}.atlasv1.{_text(67)}",
    "doppler": lambda: "dp.pt." + _text(43),
    "pulumi": lambda: "pul-" + _text(40, HEX),
    "age": lambda: "AGE-SECRET-KEY-1" + _text(58, string.ascii_uppercase + string.digits),
    "grafana": lambda: f"glsa_{_text(32)}_{_text(8, HEX)}",
    "sentry": lambda: "sntrys_" + _text(100),
    "new relic": lambda: "NRAK-" + _text(27, string.ascii_uppercase + string.digits),
    "circleci": lambda: f"CCIPAT_{_text(22)}_{_text(40, HEX)}",
    "atlassian": lambda: "ATATT3" + _text(186, URLSAFE),
    "bitbucket": lambda: "ATBB7" + _text(31),
    "slack app": lambda: f"xapp-1-A{_text(10)}-{_text(13, string.digits)}-{_text(64, HEX)}",
    "stripe test": lambda: "sk_test_" + _text(24),
    "notion": lambda: "ntn_" + _text(46),
    "postman": lambda: f"PMAK-{_text(24, HEX)}-{_text(34, HEX)}",
    "shopify": lambda: "shpat_" + _text(32, HEX),
    "hubspot": lambda: f"pat-na1-{_text(8, HEX)}-{_text(4, HEX)}-{_text(4, HEX)}-{_text(4, HEX)}-{_text(12, HEX)}",
    "mailgun": lambda: "key-" + _text(32, HEX),
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
    "behind an escaped line": '{{"log": "first\\\\n{}"}}',
    "behind an escape of JSON": "a\\u0026{}",
    "behind an escape of a URL": "https://host/x?a%3D{}",
    "behind a colour": "\x1b[31m{}\x1b[0m",
    "behind a bright colour": "\x1b[1;31m{}",
    "behind a name": "my_{}",
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
    "option with _": "--hf_token {}",
    "option with _ and =": "--client_secret={}",
    "old database": "export MYSQL_PWD={}",
    "camel case": '{{"clientSecret": "{}"}}',
    "secret access key": '{{"SecretAccessKey": "{}", "Expiration": "2026"}}',
    "shared access key": "Endpoint=sb://x/;SharedAccessKey={}",
    "docker": '{{"identitytoken": "{}"}}',
    "npm": "//registry.npmjs.org/:_authToken={}",
    "bytes": "{{'Authorization': b'Bearer {}'}}",
    "other scheme": "Authorization: Key {}",
    "digest": 'Authorization: Digest username="me", nonce="a", response="{}"',
    "signed header": "Authorization: AWS4-HMAC-SHA256 Credential=me/20260101/us/s3/aws4_request, Signature={}",
    "header of Azure": "Ocp-Apim-Subscription-Key: {}",
    "escaped query": "next=%2Fx%3Ftoken%3D{}",
    "query escaped in json": "client_secret\\u003d{}",
    "manifest": '{{"name": "HF_TOKEN", "value": "{}"}}',
    "manifest in yaml": "- name: HF_TOKEN\n  value: {}",
    "xml": "<password>{}</password>",
    "netrc with account": "machine h login me account a password {}",
}
#: places behind names that are words too: only what mixes letters and digits is masked
PERHAPS = [
    "db_pass={}", "DB_PASS={}", "pwd: {}", "Server=x;Pwd={};", '"auth": "{}"', "_auth={}", "GH_PAT={}",
    "REDISCLI_AUTH={}", "SSHPASS={}", "jwt: {}", "GOOGLE_CREDENTIALS={}", "passcode={}", "curl -u me:{} https://host",
    "curl --user 'me:{}'",
]  # fmt: skip


@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_credentials_are_known_by_their_shape(kind: str) -> None:
    for place in sorted(PLACES) * 5:
        secret = SHAPES[kind]()
        shown = redact(PLACES[place].format(secret))
        assert secret.removeprefix("AccountKey=") not in shown and "***" in shown, place
        before, after = PLACES[place].format("|").split("|")
        assert shown.startswith(before) and shown.endswith(after), place


@pytest.mark.parametrize("kind", sorted({**SHAPES, **PLAIN}))
def test_credentials_are_known_by_their_place(kind: str) -> None:
    for place in sorted(ASSIGNED):
        secret = {**SHAPES, **PLAIN}[kind]()
        shown = redact(ASSIGNED[place].format(secret))
        assert secret not in shown and "***" in shown, (place, shown)
        assert redact(shown) == shown, place


@pytest.mark.parametrize("place", PERHAPS)
def test_what_looks_like_a_credential_is_masked_behind_a_word(place: str) -> None:
    for secret in ("s3cr3t" + _text(6), "9aZ" + _text(20)):
        assert redact(place.format(secret)) == place.format("***")


def test_a_json_web_token_goes_with_its_signature() -> None:
    token = _jwt()
    assert token.rsplit(".", 1)[1] not in redact(f"got {token}.")


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
                assert _PERHAPS.search(secret) or _OWN.fullmatch(secret), secret
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
        "pwd: /home/me/models2, auth: kerberos, pass=2, pass: 12.5 ms, jwt: RS256",
        "docker run -u 1000:1000, --user root:root, chown -R app:app2",
        "name: max_tokens\n  value: 4096",
        "task-9f86d081884c7d659a2feaa0c55ad015, disk-0e9e39f249a16976918f6564b8830bc8",
        "authorization: a key opens what is closed",
        "as-is, ak-47, key-value, pat-1, dapi, fw_update, r8_x, xai-1",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home without files."""
    for name in ("NETRC", "HF_TOKEN_PATH", "HF_STORED_TOKENS_PATH", "HF_HOME", "XDG_CACHE_HOME"):
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


@pytest.mark.parametrize("around", ["{}", "me:{}", "ab{}", "x:{}\n", "{{'a': '{}'}}"])
def test_values_are_known_in_base64(monkeypatch: pytest.MonkeyPatch, nobody: Path, around: str) -> None:
    monkeypatch.setenv("MY_PASSWORD", "correct horse?>")
    text = around.format("correct horse?>").encode()
    for encoded in (base64.b64encode(text).decode(), base64.urlsafe_b64encode(text).decode()):
        start = len(around.split("{")[0])
        shown = redact(f"data {encoded} end")
        assert "***" in shown and encoded[start + 4 : start + 12] not in shown


def test_lines_of_a_long_value_are_known_alone(monkeypatch: pytest.MonkeyPatch, nobody: Path) -> None:
    body = [_text(64), _text(64)]
    monkeypatch.setenv("SIGNING_KEY", "\n".join(["-----BEGIN KEY-----", *body, "short", "-----END KEY-----"]))
    assert [redact(f"| {line}") for line in body] == ["| ***"] * 2
    assert redact("-----BEGIN KEY-----, short") == "-----BEGIN KEY-----, short"


def test_a_word_behind_a_name_that_may_be_a_secret_stays(monkeypatch: pytest.MonkeyPatch, nobody: Path) -> None:
    monkeypatch.setenv("TRACKING_AUTH", "kerberos")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key1.json")
    monkeypatch.setenv("GH_PAT", "plain4words")
    assert redact("kerberos /home/me/key1.json plain4words") == "kerberos /home/me/key1.json ***"


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
    (nobody / ".cache" / "huggingface" / "stored_tokens").write_text("[work]\nhf_token = tokenofanother\n")
    for cached in (secret_values._netrc, secret_values._token_file, secret_values._stored_tokens):
        cached.cache_clear()
    assert redact("indexpassword netrcpassword tokenofthefile tokenofanother") == "*** *** *** ***"


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
