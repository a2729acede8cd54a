"""JSON schemas under speculation: 1,000 generated ones are answered with drafts and without, every answer is checked.

    python -m benchmarks.guided_speculation [--engine DIR] [--schemas 1000] [--quick] [--json FILE]

Bars: every answer of both ways is complete and valid by its schema (checked by RapidJSON's validator, which knows
nothing of the grammars), and both ways answer the same text. Half the requests are greedy, half sampled under seeds of
their own; a schema depends on its number alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import common

if TYPE_CHECKING:
    from runtime.offline import Engine

RECIPE = common.ROOT / "configs" / "smollm2-135m-ngram.yaml"
MAX_TOKENS = 200
_NAMES = ("name", "city", "color", "count", "price", "active", "tags", "owner", "size", "level", "code", "note", "unit")
_WORDS = ("red", "green", "blue", "north", "south", "small", "large", "open", "closed", "draft", "final", "paid")


def make_schema(number: int) -> dict[str, Any]:
    """Schema ``number``: an object of one to five bounded properties, two levels deep at most."""
    made = random.Random(f"schema {number}")
    return {**_object(made, depth=2), "x-guidance": {"whitespace_flexible": False}}


def _object(made: random.Random, depth: int) -> dict[str, Any]:
    names = made.sample(_NAMES, made.randint(1, 5 if depth == 2 else 2))
    return {
        "type": "object",
        "properties": {name: _value(made, depth - 1) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def _value(made: random.Random, depth: int) -> dict[str, Any]:
    low = made.randint(-50, 50)
    kinds: list[dict[str, Any]] = [
        {"type": "boolean"},
        {"type": "null"},
        {"type": "integer", "minimum": low, "maximum": low + made.randint(0, 1000)},
        {"enum": made.sample(_WORDS, made.randint(1, 4))},
        {"type": "string", "minLength": 1, "maxLength": made.randint(3, 12)},
        {"type": "string", "pattern": "^" + made.choice(("[A-Z]{2}[0-9]{3}", "[a-f0-9]{4}", "(yes|no|maybe)")) + "$"},
        {"type": "array", "items": {"enum": made.sample(_WORDS, 3)}, "minItems": 1, "maxItems": made.randint(1, 4)},
        {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"enum": made.sample(_WORDS, 2)}]},
    ]
    if depth > 0 and made.random() < 0.25:
        return _object(made, depth)
    return made.choice(kinds)


def prompt_of(schema: dict[str, Any]) -> str:
    """The question that the schema's answer stands for."""
    return f"Make up a record with the fields {', '.join(schema['required'])}. Answer in JSON."


def fault_of(schema: dict[str, Any], text: str, finish_reason: Any) -> str | None:
    """Why an answer is none of its schema; None: it is."""
    import rapidjson

    if str(finish_reason) != "stop":
        return f"it ended by {finish_reason}"
    try:
        rapidjson.Validator(json.dumps(schema))(text)
    except (rapidjson.ValidationError, rapidjson.JSONDecodeError) as error:
        return str(error)
    return None


def answer(engine: Engine, schemas: Sequence[dict[str, Any]], *, speculate: bool) -> tuple[list[Any], float]:
    """Results in the order of the schemas, and seconds."""
    from runtime.sampling.params import GuidedDecoding, SamplingParams

    params = [
        SamplingParams(
            max_tokens=MAX_TOKENS,
            temperature=0.0 if number % 2 == 0 else 0.8,
            seed=number,
            guided=GuidedDecoding(json_schema=schema),
        )
        for number, schema in enumerate(schemas)
    ]
    chats = [[{"role": "user", "content": prompt_of(schema)}] for schema in schemas]
    started = time.perf_counter()
    return engine.generate(chats, params, speculate=speculate), time.perf_counter() - started


def measure(engine: Engine, count: int) -> dict[str, Any]:
    """Both ways over the first ``count`` schemas."""
    schemas = [make_schema(number) for number in range(count)]
    ways: dict[str, Any] = {}
    texts = {}
    for speculate, name in ((False, "without"), (True, "with speculation")):
        results, seconds = answer(engine, schemas, speculate=speculate)
        faults = {
            number: fault
            for number, (schema, result) in enumerate(zip(schemas, results, strict=True))
            if (fault := fault_of(schema, result.text, result.finish_reason)) is not None
        }
        texts[name] = [result.text for result in results]
        completions = [completion for result in results for completion in result.completions]
        ways[name] = {
            "valid": count - len(faults),
            "faults": faults,
            "tokens": sum(len(result.token_ids) for result in results),
            "seconds": seconds,
            "drafted": sum(one.num_draft_tokens for one in completions),
            "accepted": sum(one.num_accepted_tokens for one in completions),
        }
    same = sum(one == other for one, other in zip(*texts.values(), strict=True))
    bars = {
        "all answers valid without speculation": ways["without"]["valid"] == count,
        "all answers valid with speculation": ways["with speculation"]["valid"] == count,
        "the same texts in both ways": same == count,
        "drafts were verified": ways["with speculation"]["drafted"] > 0,
    }
    distinct = len({json.dumps(schema) for schema in schemas})
    return {"schemas": count, "distinct": distinct, "same": same, "ways": ways, "bars": bars}


def report(figures: dict[str, Any]) -> None:
    """Print the figures."""
    print(f"{figures['schemas']} JSON schemas ({figures['distinct']} different ones)")
    for name, way in figures["ways"].items():
        drafts = f", {way['accepted']} of {way['drafted']} draft tokens accepted" if way["drafted"] else ""
        print(f"  {name}: {way['valid']} valid, {way['tokens']} tokens in {way['seconds']:.1f} s{drafts}")
        for number, fault in list(way["faults"].items())[:5]:
            print(f"    schema {number}: {fault}")
    for bar, held in figures["bars"].items():
        print(f"{'holds' if held else 'MISSED'}: {bar}")


def main() -> int:
    """Exit code 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=Path, help=f"an engine that speculates; default: that of {RECIPE.name}")
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="100 schemas")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    from runtime.offline import Engine

    with Engine.load(arguments.engine or common.run_recipe(RECIPE)["build"], threads=arguments.threads) as engine:
        figures = measure(engine, 100 if arguments.quick else arguments.schemas)
    report(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if all(figures["bars"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
