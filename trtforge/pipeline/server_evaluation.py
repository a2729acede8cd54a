"""Evaluates a live server against the bundle that it serves, and seals the result into that bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.hashing import hash_file
from trtforge.ground.json_file import read_json_file
from trtforge.ground.progress import Progress
from trtforge.ground.redaction import redact_value
from trtforge.pipeline.stages.bundle import ENGINE_DIR, EVIDENCE_DIR, RECIPE_FILE
from trtforge.pipeline.stages.common import rounded
from trtforge.pipeline.stages.engine_tokenizer import tokenizer_in
from trtforge.pipeline.stages.subject import item_tokens, prompt_tokens
from trtforge.recipe.schema import Recipe
from trtforge.store.addendum import Addendum, seal_addendum, verdict_of
from trtforge.store.manifest import gates_to_json
from trtforge.store.verify import made_later, verify_content

if TYPE_CHECKING:
    from evals.server.clients import TextServer
    from evals.server.measure import Found, OnRecord, Texts
    from evals.tasks import Item
    from runtime.tokenizer import EngineTokenizer
    from trtforge.store.integrity import VerifyReport


@dataclass(frozen=True)
class ServerResult:
    """What came of it: figures and gates, the addendum, and the bundle's verdict with it."""

    found: Found
    addendum: Addendum
    verdict: str
    server: dict[str, Any]


def evaluate_live(
    bundle: Path, address: str, progress: Progress, *, model: str | None = None, load: bool = True
) -> ServerResult:
    """Ask the server at ``address`` what the bundle has on record and seal the verdict into the bundle.

    Raises:
        ForgeError: TF-EVL-021 the bundle is damaged or has no evidence; TF-EVL-018 … 020 of the server; TF-BND-037 …
            040 of addenda.
    """
    from evals.server.clients import open_server
    from evals.server.measure import evaluate_server
    from evals.speed.prompts import load_prompts
    from trtforge.recipe.load import load_recipe

    report = sound(bundle, progress)
    root = report.path
    recipe = load_recipe(root / RECIPE_FILE, []).recipe
    server = open_server(address, recipe.layout, model, recipe.name)
    about = _about(server)
    tokenizer = tokenizer_of(root)
    record = on_record(root, recipe, tokenizer)
    prompts = load_prompts(recipe.bench.prompts, root) if load and _at_hand(recipe.bench.prompts) else []
    no_load = "the bundle does not hold the prompts of bench.prompts" if load else "not asked for"
    found = evaluate_server(server, record, texts_of(tokenizer), recipe, progress, load=prompts, no_load=no_load)
    assert report.manifest is not None and report.manifest_sha256 is not None
    content = {
        "server": {**about, "address": address},
        "figures": rounded(found.figures),
        "gates": gates_to_json(found.gates),
        "passed": all(gate.passed for gate in found.gates),
        "left_out": found.left_out,
        "takes_the_place_of": report.manifest["summary"].get("not_run", {}),
        "made_later": {name: hash_file(root / name) for name in made_later(report)},
    }
    addendum = seal_addendum(root, report.manifest_sha256, redact_value(content))
    return ServerResult(found, addendum, verdict_of(report.manifest, [addendum]), about)


def _about(server: TextServer) -> dict[str, Any]:
    try:
        return server.about()
    except (OSError, ValueError) as error:
        return {"kind": server.kind, "model": server.model, "error": str(error)}


def _at_hand(prompts: str) -> bool:
    """Whether a bundle can find its load test's prompts: files lie beside the recipe that it was made from."""
    return prompts.startswith("builtin:")


def sound(bundle: Path, progress: Progress) -> VerifyReport:
    """The verified bundle; its earlier addenda may say what they like, and are held to their hashes."""
    report = verify_content(bundle, progress=progress)
    faults = [item for item in report.findings if item.severity == "error" and item.code != "TF-BND-039"]
    manifest = report.manifest or {}
    if not faults and manifest.get("stage") == "bundle" and manifest.get("gates_passed") is True:
        return report
    why = f"{faults[0].code}: {faults[0].path}: {faults[0].message}" if faults else None
    missed = manifest.get("gates_passed") is False
    raise ForgeError(
        "TF-EVL-021",
        f"{bundle} is no bundle that a server could be held against",
        asked=f"--bundle {bundle}",
        numbers={"faults": len(faults)},
        why=why or ("its own run missed a gate" if missed else "it was not made by the stage bundle"),
        remedies=[f"trtforge verify {bundle}", "trtforge run RECIPE makes a bundle"],
    )


def tokenizer_of(root: Path) -> EngineTokenizer:
    """The tokenizer that the bundle's engine carries."""
    return tokenizer_in(root / ENGINE_DIR)


def texts_of(tokenizer: EngineTokenizer) -> Texts:
    """Prompts as text that the server's tokenizer turns into the tokens that the models on record were given."""
    from evals.server.measure import Texts

    def sent(ids: Sequence[int]) -> str:
        text = tokenizer.decode(ids, skip_special_tokens=False)
        if tokenizer.encode(text) == list(ids):
            return text
        begin = tokenizer.decode(list(ids)[:1], skip_special_tokens=False)
        # a server adds the first token itself
        return text.removeprefix(begin) if tokenizer.encode(text.removeprefix(begin)) == list(ids) else text

    def item(asked: Item) -> str:
        return sent(item_tokens(tokenizer, asked)) if asked.chat else asked.prompt

    def prompt(text: str) -> str:
        return sent(prompt_tokens(tokenizer, text)) if tokenizer.chat_template is not None else text

    return Texts(prompt, item, lambda text: tokenizer.encode(text, add_special_tokens=False))


def on_record(root: Path, recipe: Recipe, tokenizer: EngineTokenizer) -> OnRecord:
    """What the bundle's evidence says of the quantized and the unquantized model.

    Raises:
        ForgeError: TF-EVL-021 the evidence is of another version, or torn.
    """
    import numpy as np

    from evals.generation import Answer
    from evals.samples import read_samples_file
    from evals.server.measure import OnRecord
    from evals.tasks import Item, answered_of

    evidence = root / EVIDENCE_DIR

    def answers(name: str) -> list[Answer]:
        return [Answer.of_json(record) for record in read_json_file(evidence / name)]

    try:
        baseline, quantized = (
            read_samples_file(evidence / f"tasks-{side}.jsonl") for side in ("baseline", "quantized")
        )
        needles, known = (read_samples_file(evidence / f"needles-{side}.jsonl") for side in ("quantized", "baseline"))
        tokens = _tokens(recipe, root, tokenizer, read_json_file(evidence / "perplexity-quantized.json"))
        return OnRecord(
            answers("generation-quantized.json"),
            answers("generation-baseline.json"),
            [Item.of_json(record) for record in quantized],
            answered_of(quantized),
            answered_of(baseline),
            tokens,
            np.load(evidence / "nll-quantized.npy", allow_pickle=False) if tokens else None,
            np.load(evidence / "nll-baseline.npy", allow_pickle=False) if tokens else None,
            [Item.of_json(record) for record in needles],
            answered_of(known),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ForgeError(
            "TF-EVL-021",
            f"the evidence of {root.name} cannot be read: {error}",
            asked=str(evidence),
            why="A server is held against what the bundle's own run measured; bundles of earlier versions lack it.",
            remedies=["make the bundle anew: trtforge run RECIPE"],
        ) from error


def _tokens(recipe: Recipe, root: Path, tokenizer: EngineTokenizer, figures: dict[str, Any]) -> list[int]:
    """The tokens that perplexity was measured on; none where the corpus lies elsewhere or is another."""
    from evals.perplexity import tokens_digest
    from quantize.corpora import load_corpus, take_tokens

    if not recipe.evals.perplexity.corpus.startswith("builtin:"):
        return []
    corpus = load_corpus(recipe.evals.perplexity.corpus, root, "evaluation")
    tokens: list[int] = take_tokens(corpus, tokenizer.backend, recipe.evals.perplexity.tokens).tolist()
    return tokens if tokens_digest(tokens) == figures["tokens_sha256"] else []
