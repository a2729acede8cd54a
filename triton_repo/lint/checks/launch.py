"""Rules on the lines that start a server on the repository: what they leave open to clients, and their release."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from triton_repo.lint.files import Unreadable, read_text
from triton_repo.lint.hits import Hit, rule
from triton_repo.lint.remedies import person
from triton_repo.lint.repository import Repository
from trtforge.rules.tables import Section
from trtforge.tables.advisories import fixed_in, known_holes, summary
from trtforge.tritonserver.launch_lines import SERVER, images, launch_lines, weaknesses

SECTION = Section(200, "Starts of a server")

_DEPLOY = "https://github.com/triton-inference-server/server/blob/main/docs/customization_guide/deploy.md"
_BULLETINS = "https://github.com/NVIDIA/product-security"


def _texts(repository: Repository) -> Iterator[tuple[Path, str]]:
    for path in repository.launch_files:
        try:
            yield path, read_text(path, Path(os.path.realpath(path.parent)))
        except Unreadable:
            continue


@rule("TF-TRI-260", "warning", "a start leaves dangerous APIs open to every client", _DEPLOY)
def open_to_clients(repository: Repository) -> Iterator[Hit]:
    """Triton opens all its APIs to whoever reaches a port: through shared memory a client reads and writes other
    clients' data and ends the server, through logs and traces it writes files."""
    for path, text in _texts(repository):
        for launch in launch_lines(text, path.name):
            for weakness in weaknesses(launch):
                yield Hit(weakness.what, (person(weakness.remedy),), "", path, launch.line)


@rule("TF-TRI-261", "warning", "the image's Triton has known holes", _BULLETINS)
def holes_of_images(repository: Repository) -> Iterator[Hit]:
    """NVIDIA's security bulletins name the releases that have them; a later image is the only repair."""
    for path, text in _texts(repository):
        for line, image, month in images(text):
            known = known_holes(SERVER, month)
            if known:
                remedy = person(f"an image of {fixed_in(known)} or later")
                yield Hit(f"{image}: {summary(known)}", (remedy,), "", path, line)


@rule("TF-TRI-262", "error", "a launch file says nothing", _DEPLOY)
def nothing_to_look_at(repository: Repository) -> Iterator[Hit]:
    """It was named to be looked at, and it cannot be read or holds no line that starts a server on a repository."""
    for path in repository.named_launch_files:
        try:
            text = read_text(path, Path(os.path.realpath(path.parent)))
        except Unreadable as error:
            yield Hit(f"{path.name}: {error.reason}", (person("a text file"),), "", path)
            continue
        if not launch_lines(text, path.name):
            yield Hit(
                f"{path.name}: no line starts tritonserver with --model-repository",
                (person("the script or manifest that starts it"),),
                "",
                path,
                severity="note",
            )
