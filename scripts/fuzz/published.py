"""What the store publishes and keeps: manifests and COMPLETE changed and sealed anew, odd files in any place, records.

``bundles`` looks at a bundle as somebody else's (verify, bench, engine info, artifacts show), ``store`` runs a light
pipeline on artifacts and records that were changed under it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
from pathlib import Path
from typing import Any

from scripts.fuzz import mutate
from scripts.fuzz.harness import Attempt, Fault, Target, command
from tests.support import synthetic
from trtforge.cli.bundle import require_sound
from trtforge.ground.console import Console
from trtforge.ground.errors import ForgeError
from trtforge.ground.hashing import hash_bytes
from trtforge.pipeline.explain import explain
from trtforge.pipeline.pipeline import Pipeline
from trtforge.store.artifact import Artifact, GateResult, StageResult
from trtforge.store.integrity import verify_directory
from trtforge.store.manifest import content_hash, measured_hash
from trtforge.store.store import Store

#: what may lie where a file belongs; none may be waited for, read without end, or followed out of its folder
ODD_FILES = ("fifo", "socket", "device", "folder", "giant", "outside", "loop", "nothing")
BUNDLE_FILES = {
    "engine/engine.json": json.dumps({"version": 1, "target": "torch", "name": "m"}),
    "repository/m/config.pbtxt": 'name: "m"\nbackend: "python"\n',
    "recipe.yaml": "name: m\nmodel: {source: x}\n",
}
STAMPS = {
    "target": "tensorrt",
    "compiled": True,
    "stack": "tensorrt-11",
    "serves_with": [{"name": "TensorRT", "version": "11.4", "probe": "tensorrt", "serving": True}],
    "isa": ["avx2"],
    "gpu_architectures": ["sm_90"],
    "plugin_abi": "0123",
    "host_abi": 1,
    "ops_version": 1,
    "numpy": ">=1.26,<2",
    "python": ">=3.11",
    "tokenizer_sha256": "a" * 64,
}


def put_odd(path: Path, kind: str) -> None:
    """Replace whatever lies at ``path`` by something of :data:`ODD_FILES`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.open(path.parent, os.O_RDONLY)
        try:  # the path of a socket has 107 bytes at most
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "giant":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "outside":
        path.symlink_to("/etc/hostname")
    elif kind == "loop":
        path.symlink_to(path.name)


def publish_bundle(store: Store) -> Artifact:
    """A bundle as the store seals one, with every kind of entry and of stamp."""
    key = "b" * 64
    with store.lock("bundle", key):
        out = store.begin("bundle", key)
        for name, text in BUNDLE_FILES.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(text)
        (out / "empty").mkdir()
        (out / "link").symlink_to("recipe.yaml")
        ingredients = {
            "code_version": "1",
            "section": {"recipe": {"name": "m"}},
            "inputs": {},
            "tools": {"torch": "2.13"},
            "host": {},
        }
        result = StageResult(
            summary={"limits": {"max_batch_size": 4}, "not_run": {}},
            measurements={"bench": {"sweeps": []}},
            gates=[GateResult("smoke", True, 1.0, 0.5, "all answered", 0.9)],
            measured=("recipe.yaml",),
            stamps=dict(STAMPS),
        )
        return store.publish(
            out, stage="bundle", key=key, ingredients=ingredients, inputs={}, result=result, seconds=1.5
        )


def reseal(directory: Path, manifest: Any, raw: bytes, *, hashes: bool) -> None:
    """Write a manifest with the COMPLETE that fits it; ``hashes``: with the content hashes that fit it, too."""
    if hashes and isinstance(manifest, dict):
        with contextlib.suppress(Exception):  # what has no such hash keeps the one that it had
            fitting = {
                "content_hash": content_hash(manifest, manifest["summary"]),
                "measured_hash": measured_hash(manifest, manifest["measurements"]),
            }
            raw = json.dumps({**manifest, **fitting}).encode()
    (directory / "manifest.json").write_bytes(raw)
    (directory / "COMPLETE").write_text(hash_bytes(raw) + "\n")


def _change_manifest(draw: random.Random, directory: Path) -> None:
    """One way in which somebody may have changed what says that a directory is finished."""
    sealed = json.loads((directory / "manifest.json").read_bytes())
    kind = draw.randrange(8)
    if kind == 0:
        name = draw.choice(("manifest.json", "COMPLETE"))
        (directory / name).write_bytes(mutate.data(draw, (directory / name).read_bytes()))
    else:
        document = mutate.document(draw, sealed)
        reseal(directory, document, mutate.dumped(draw, document), hashes=kind % 2 == 0)


def make_bundles(pristine: Path) -> Attempt:
    """Over one small bundle."""
    publish_bundle(Store(pristine / "store", durable=False))
    places = ("manifest.json", "COMPLETE", "engine", "repository", "link", "foreign", *BUNDLE_FILES)

    def attempt(draw: random.Random, folder: Path) -> None:
        root = folder / "store"
        shutil.copytree(pristine / "store", root, symlinks=True)
        bundle = next((root / "artifacts" / "bundle").iterdir())
        if draw.random() < 0.7:
            _change_manifest(draw, bundle)
        else:
            put_odd(bundle / draw.choice(places), draw.choice(ODD_FILES))
        asked = draw.randrange(8)
        if asked <= 2:
            command("verify", bundle)
        elif asked == 3:
            require_sound(Console("quiet"), bundle)
        elif asked == 4:
            command("bench", bundle, "--no-server", "--no-in-process")
        elif asked == 5:
            command("engine", "info", bundle)
        else:
            command("artifacts", *draw.choice((("list",), ("show", "bundle"), ("gc", "--dry-run"))), "--store", root)

    return attempt


def make_store(pristine: Path) -> Attempt:
    """Over a store on which the synthetic pipeline has run."""
    first = Pipeline(synthetic.stages(), Store(pristine / "store", durable=False))
    first.run(synthetic.recipe(), output=pristine / "bundles")
    wanted = synthetic.content_hashes(first.store)

    def attempt(draw: random.Random, folder: Path) -> None:
        root = folder / "store"
        shutil.copytree(pristine / "store", root, symlinks=True)
        artifacts = sorted((root / "artifacts").glob("*/*"))
        asked = draw.random()
        sealed_anew = asked < 0.6
        if sealed_anew:
            _change_manifest(draw, draw.choice(artifacts))
        elif asked < 0.8:
            record = draw.choice((root / "store.json", *(root / "runs").iterdir(), *(root / "links").iterdir()))
            record.write_bytes(mutate.dumped(draw, mutate.document(draw, json.loads(record.read_bytes()))))
        else:
            files = ["COMPLETE", "manifest.json", "data", "data/part0.bin", "empty"]
            places = [draw.choice(artifacts) / draw.choice(files), root / "store.json", root / "active" / "1.json"]
            places += [*(root / "runs").iterdir(), *(root / "links").iterdir()]
            put_odd(draw.choice(places), draw.choice(ODD_FILES))
        pipeline = Pipeline(synthetic.stages(), Store(root, durable=False))
        explain(pipeline, synthetic.recipe(draw.randrange(2)))
        result = pipeline.run(synthetic.recipe(), output=folder / "bundles", full_check=draw.random() < 0.3)
        if not sealed_anew:  # a manifest that was sealed anew may rightly be taken for another result
            if synthetic.content_hashes(pipeline.store) != wanted:
                raise Fault("the run ended with other content")
            if result.link is None or not verify_directory(result.link).ok:
                raise Fault("the run ended with a bundle that does not verify")
        if result.quarantined:
            raise ForgeError(result.quarantined[0].code, "taken out of use and made anew")

    return attempt


BUNDLES = Target(
    "bundles", "manifest, COMPLETE and files of a bundle: verify, serve's check, bench, engine info, artifacts",
    make_bundles, cases=100,
)  # fmt: skip
STORE = Target("store", "manifests and records of a store: explain and a run of a light pipeline", make_store, cases=40)
