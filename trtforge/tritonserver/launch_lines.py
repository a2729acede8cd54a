"""Finds the commands that start a Triton server in scripts and manifests, and says what they leave open to clients.

Shell scripts, Dockerfiles and units are read line by line, manifests (compose, Kubernetes) as YAML, whose scripts are
read as shell. Nothing is run and nothing is expanded: an option that a variable holds is not seen, and a line counts as
a start only when it names a model repository, as Triton demands.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from trtforge.ground.rows import safe_loader
from trtforge.tritonserver.server_launch import CLOSED_APIS, GRPC_OPTION, HTTP_OPTION, KEY

SERVER = "tritonserver"
_IMAGE = re.compile(r"nvcr\.io/nvidia/tritonserver:(\d{2}\.\d{2})[\w.-]*")
_REPOSITORY = ("--model-repository", "--model-store")
_ENDS = frozenset({";", "&", "&&", "|", "||", ")", "}", ":"})
_FALSE = frozenset({"false", "0", "no", "off"})
_TRUE = frozenset({"true", "1", "yes", "on"})
#: endpoints that did not know of closed APIs before 26.04
_AROUND = ("--allow-sagemaker", "--allow-vertex-ai")
_YAML = (".yaml", ".yml")
_MAX_DEPTH = 8


@dataclass(frozen=True)
class LaunchLine:
    """A start of a server: its line in the text, and the words after the program's name."""

    line: int
    words: tuple[str, ...]

    def values(self, name: str) -> list[str]:
        """The values of an option, given as ``--name=value`` or ``--name value``; a bare option is ``true``."""
        found = []
        for index, word in enumerate(self.words):
            option, equals, value = word.partition("=")
            if option == name:
                after = self.words[index + 1] if index + 1 < len(self.words) else "--"
                found.append(value if equals else "true" if after.startswith("-") else after)
        return found


@dataclass(frozen=True)
class Weakness:
    """What a launch line leaves open, and the words that would close it."""

    what: str
    remedy: str


def open_apis(launch: LaunchLine, option: str) -> list[str]:
    """The dangerous APIs that an option leaves open on its protocol; none where the protocol is switched off."""
    switch = "--allow-http" if option == HTTP_OPTION else "--allow-grpc"
    if any(value.lower() in _FALSE for value in launch.values(switch)):
        return []
    closed = {api.strip() for value in launch.values(option) for api in value.partition(":")[0].split(",")}
    # without model control the API only lists the models
    controlled = "explicit" in launch.values("--model-control-mode")
    return [api for api in CLOSED_APIS if api not in closed and (api != "model-repository" or controlled)]


def weaknesses(launch: LaunchLine, *, written: bool = True) -> list[Weakness]:
    """Everything that a start leaves open; ``written`` is false for a process, whose key may well stand there."""
    found = []
    apis = ",".join(CLOSED_APIS)
    for option, protocol in ((HTTP_OPTION, "HTTP"), (GRPC_OPTION, "gRPC")):
        opened = open_apis(launch, option)
        if opened:
            what = "; ".join(f"{api} (a client {CLOSED_APIS[api]})" for api in opened)
            found.append(Weakness(f"open to every client on {protocol}: {what}", f'{option}={apis}:{KEY}="$KEY"'))
        for value in launch.values(option):
            key, _, secret = value.partition(":")[2].partition("=")
            if written and secret and not re.search(r"[$%{<]", secret):
                found.append(
                    Weakness(
                        f"the secret of {option} stands in the text ({key})",
                        f'draw it at the start: {option}={apis}:{KEY}="$(openssl rand -hex 24)"',
                    )
                )
    for option in _AROUND:
        if any(value.lower() in _TRUE for value in launch.values(option)):
            found.append(
                Weakness(f"{option} answers around closed APIs before Triton 26.04", f"{option}=false, or Triton 26.04")
            )
    return found


def images(text: str) -> list[tuple[int, str, str]]:
    """The images of NVIDIA's Triton that a text names: line, image and container month."""
    return [
        (number, found[0], found[1])
        for number, line in enumerate(text.splitlines(), 1)
        if not line.lstrip().startswith("#")
        for found in _IMAGE.finditer(line)
    ]


def launch_lines(text: str, name: str = "") -> list[LaunchLine]:
    """The starts in a text; ``name`` is its file's, whose ending says how it is read."""
    if SERVER not in text:
        return []
    found = list(_manifest(text) if PurePath(name).suffix in _YAML else _shell(text))
    return sorted(dict.fromkeys(found), key=lambda launch: launch.line)


def of_command(words: Sequence[str]) -> LaunchLine | None:
    """The start in a command that is a list of words already (a process, a JSON list); None when it is none."""
    return next(_starts(words, 1, 0), None)


def _shell(text: str, first: int = 1, depth: int = 0) -> Iterator[LaunchLine]:
    for line, logical in _logical_lines(text, first):
        if SERVER in logical:
            yield from _starts(_words(logical), line, depth)


def _logical_lines(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Lines joined over a backslash at their end, with the number of the first."""
    begun, parts = first, ""
    for number, line in enumerate(text.splitlines(), first):
        if not parts:
            begun = number
        if line.rstrip().endswith("\\"):
            parts += line.rstrip()[:-1] + " "
            continue
        yield begun, parts + line
        parts = ""
    if parts:
        yield begun, parts


def _words(line: str) -> list[str]:
    """A line as a shell splits it; a Dockerfile's list as the list it is."""
    listed = re.match(r"\s*(?:CMD|ENTRYPOINT)\s+(\[.*\])\s*$", line)
    if listed:
        try:
            return [str(word) for word in json.loads(listed[1])]
        except ValueError:
            pass
    split = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
    split.whitespace_split = True
    try:
        return list(split)
    except ValueError:  # a quote that another line closes
        return line.split()


def _starts(words: Sequence[str], line: int, depth: int) -> Iterator[LaunchLine]:
    """The starts among the words of one command, and in words that are scripts themselves (``sh -c '…'``)."""
    for index, word in enumerate(words):
        if word.rpartition("/")[2].strip("'\"") == SERVER:
            rest = []
            for following in words[index + 1 :]:
                if following in _ENDS:
                    break
                rest.append(following)
            launch = LaunchLine(line, tuple(rest))
            if any(launch.values(name) for name in _REPOSITORY):
                yield launch
        elif SERVER in word and any(blank in word for blank in " \n") and depth < _MAX_DEPTH:
            yield from (LaunchLine(line, inner.words) for inner in _shell(word, line, depth + 1))


def _manifest(text: str) -> Iterator[LaunchLine]:
    """The starts in YAML: ``entrypoint``, ``command`` and ``args`` of a mapping are one command, others are scripts."""
    import yaml

    try:
        documents = list(yaml.compose_all(text, Loader=safe_loader()))
    except (yaml.YAMLError, RecursionError, ValueError):
        yield from _template(text)
        return
    seen: set[int] = set()
    waiting = [node for node in documents if node is not None]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            parts = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
            command = [parts[name] for name in ("entrypoint", "command", "args") if name in parts]
            words, line, scripts = _command(command)
            yield from _starts(words, line, 0)
            waiting += scripts
            waiting += [value for _, value in node.value if value not in command]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.ScalarNode) and SERVER in node.value:
            block = node.style in ("|", ">")
            yield from _shell(node.value, node.start_mark.line + (2 if block else 1))


def _command(nodes: Sequence[Any]) -> tuple[list[str], int, list[Any]]:
    """A manifest's command: its words, the line where the server is named, and the scripts among its words."""
    import yaml

    words: list[str] = []
    scripts = []
    line = 1
    for node in nodes:
        listed = isinstance(node, yaml.SequenceNode)
        for scalar in node.value if listed else [node]:
            if not isinstance(scalar, yaml.ScalarNode):
                continue
            if SERVER in scalar.value:
                line = scalar.start_mark.line + 1
                if "\n" in scalar.value or (listed and " " in scalar.value):
                    scripts.append(scalar)
                    continue
            words += [scalar.value] if listed else _words(scalar.value)
    return words, line, scripts


def _template(text: str) -> Iterator[LaunchLine]:
    """A manifest with a template's marks in it: the options that stand anywhere after the server's name."""
    for number, line in enumerate(text.splitlines(), 1):
        if re.search(rf"(?:^|[\s\"'/\[,-]){SERVER}(?:$|[\s\"',\]])", line):
            after = "\n".join(text.splitlines()[number - 1 :])
            options = re.findall(r"--[a-z][a-z-]*(?:=[^\s\"',\]]*)?", after)
            launch = LaunchLine(number, tuple(options))
            if any(launch.values(name) for name in _REPOSITORY):
                yield launch
            return
