"""Pairs of JSON Schemas, and documents that show which of them are compatible.

A seed stands for a pair. The reader is the writer with a few changes, so that verdicts are close. Every document of a
fixed pool that is valid for the writer must be valid for the reader if the registry calls them compatible; the judge is
jsonschema, which is not used by the registry for that. For long runs:

    python -m tests.integration.registry.json_pairs --first 0 --count 100000
"""

import argparse
import copy
import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from jsonschema import Draft7Validator, Draft202012Validator

from millstream.registry.registering import FORMATS

NEWEST, SEVENTH = "https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"
VALIDATORS = {NEWEST: (Draft202012Validator,), SEVENTH: (Draft7Validator,), "": (Draft7Validator, Draft202012Validator)}
NAMES = ["a", "b", "ab"]
SCALARS: list[Any] = [None, True, False, 0, 1, 2, 5, 0.5, -1, "", "a", "b", "abc"]
SOME: list[Any] = [None, 1, 2, "a", "bb"]
KINDS = ["null", "boolean", "integer", "number", "string", "array", "object"]


def pool() -> list[Any]:
    arrays = [list(row) for size in range(4) for row in itertools.product([None, 1, 2, "a"], repeat=size)]
    absent = object()
    objects = [
        {name: value for name, value in zip(NAMES, row, strict=True) if value is not absent}
        for row in itertools.product([absent, *SOME], repeat=len(NAMES))
    ]
    nested: list[Any] = [[[]], [[1]], [["a"], 1], [{}], [{"a": 1}], {"a": {}}, {"a": {"a": 1}}, {"a": {"b": "a"}}]
    nested += [
        {"a": []},
        {"a": [1]},
        {"a": ["a", 1]},
        {"b": {"a": 1}},
        {"a": [], "b": {}},
        {"a": True},
        {"c": 1},
        {"ba": 2},
    ]
    return SCALARS + arrays + objects + nested


POOL = pool()


class Maker:
    """Schemas from dice; with few names and small numbers, so that they meet."""

    def __init__(self, dice: random.Random, draft: str) -> None:
        self.dice = dice
        self.newest = draft != SEVENTH
        self.seventh = draft != NEWEST

    def schema(self, depth: int = 3) -> Any:
        if self.dice.random() < 0.08:
            return self.dice.random() < 0.6
        if self.dice.random() < 0.08:
            return {"$ref": "#/$defs/D"}
        found: dict[str, Any] = {}
        for _ in range(self.dice.choice([1, 1, 2, 2, 3])):
            found |= self.keyword(depth)
        return found

    def keyword(self, depth: int) -> dict[str, Any]:
        dice = self.dice
        inner: Callable[[], Any] = lambda: self.schema(depth - 1)  # noqa: E731
        several: Callable[[], Any] = lambda: [inner() for _ in range(dice.choice([1, 2, 2, 3]))]  # noqa: E731
        plain: list[Callable[[], dict[str, Any]]] = [
            lambda: {"type": dice.choice(KINDS)},
            lambda: {"type": dice.sample(KINDS, dice.choice([1, 2, 3]))},
            lambda: {"enum": dice.sample([*SCALARS, [], [1], {}, {"a": 1}], dice.choice([1, 2, 3]))},
            lambda: {"const": dice.choice(SCALARS)},
            lambda: {dice.choice(["maxLength", "minLength", "maxItems", "minItems"]): dice.randrange(4)},
            lambda: {dice.choice(["maxProperties", "minProperties"]): dice.randrange(3)},
            lambda: {
                dice.choice(["maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"]): dice.randrange(-1, 4)
            },
            lambda: {"multipleOf": dice.choice([1, 2, 0.5])},
            lambda: {"pattern": dice.choice(["^a", "b$", "a"])},
            lambda: {"uniqueItems": dice.random() < 0.7},
            lambda: {"required": dice.sample(NAMES, dice.choice([1, 2]))},
        ]
        if depth <= 0:
            return dice.choice(plain)()
        deep: list[Callable[[], dict[str, Any]]] = [
            lambda: {"properties": {name: inner() for name in dice.sample(NAMES, dice.choice([1, 2]))}},
            lambda: {
                "patternProperties": {name: inner() for name in dice.sample(["^a", "b", "a$"], dice.choice([1, 2]))}
            },
            lambda: {"additionalProperties": dice.choice([False, False, inner()])},
            lambda: {"items": inner()},
            lambda: {"propertyNames": inner()},
            lambda: {"contains": inner()},
            lambda: {"anyOf": several()},
            lambda: {"oneOf": several()},
            lambda: {"allOf": several()},
            lambda: {"not": inner()},
            lambda: {"if": inner(), "then": inner()} | ({"else": inner()} if dice.random() < 0.5 else {}),
        ]
        newest: list[Callable[[], dict[str, Any]]] = [
            lambda: {"contains": inner(), dice.choice(["minContains", "maxContains"]): dice.randrange(3)},
            lambda: {"unevaluatedProperties": dice.choice([False, False, inner()])},
            lambda: {"unevaluatedItems": dice.choice([False, False, inner()])},
            lambda: {"prefixItems": several()},
            lambda: {"dependentRequired": {dice.choice(NAMES): [dice.choice(NAMES)]}},
            lambda: {"dependentSchemas": {dice.choice(NAMES): inner()}},
        ]
        seventh: list[Callable[[], dict[str, Any]]] = [
            lambda: {"dependencies": {dice.choice(NAMES): dice.choice([inner(), [dice.choice(NAMES)]])}},
            lambda: {"items": several(), "additionalItems": inner()},
        ]
        choices = plain + deep * 2 + newest * (2 * self.newest) + seventh * (2 * self.seventh)
        return dice.choice(choices)()

    def changed(self, schema: Any) -> Any:
        """A schema that differs in one place."""
        place = self.dice.choice(list(places(schema)))
        return replaced(schema, place, self.change(at(schema, place)))

    def change(self, schema: Any) -> Any:
        dice = self.dice
        if not isinstance(schema, dict) or not schema:
            return self.schema(1)
        out = copy.deepcopy(schema)
        name = dice.choice(list(out))
        value = out[name]
        choice = dice.random()
        if choice < 0.3:
            del out[name]
        elif choice < 0.5 and isinstance(value, dict) and value:
            del value[dice.choice(list(value))]
        elif choice < 0.5 and isinstance(value, list) and len(value) > 1:
            if dice.random() < 0.5:
                value.pop(dice.randrange(len(value)))
            else:
                dice.shuffle(value)
        elif choice < 0.6 and name in ("anyOf", "oneOf", "allOf", "prefixItems"):
            value.append(self.schema(1))
        elif choice < 0.6 and isinstance(value, int) and not isinstance(value, bool):
            out[name] = max(1 if name == "multipleOf" else 0, value + dice.choice([-1, 1]))
        elif choice < 0.7:
            return {dice.choice(["anyOf", "oneOf"]): dice.sample([out, {"type": dice.choice(KINDS)}], 2)}
        elif choice < 0.75:
            return {"allOf": [{key: each} for key, each in out.items()]}
        elif choice < 0.9:
            out |= self.keyword(1)
        else:
            return self.schema(1)
        return out


_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs")
_SINGLE = (
    "additionalProperties", "items", "propertyNames", "contains", "not", "if", "then", "else", "unevaluatedProperties",
    "unevaluatedItems",
)  # fmt: skip
Path = tuple[Any, ...]


def places(schema: Any, path: Path = ()) -> Iterator[Path]:
    """Where in a schema there are schemas."""
    yield path
    if not isinstance(schema, dict):
        return
    for name in _LISTS:
        for number, each in enumerate(schema.get(name, ())):
            yield from places(each, (*path, name, number))
    for name in _MAPS:
        for key, each in schema.get(name, {}).items():
            yield from places(each, (*path, name, key))
    for name in _SINGLE:
        if isinstance(schema.get(name), dict | bool):
            yield from places(schema[name], (*path, name))


def at(schema: Any, path: Path) -> Any:
    for step in path:
        schema = schema[step]
    return schema


def replaced(schema: Any, path: Path, by: Any) -> Any:
    if not path:
        return by
    out = copy.copy(schema)
    out[path[0]] = replaced(schema[path[0]], path[1:], by)
    return out


def pair(seed: int) -> tuple[str, Any, Any]:
    """The draft, the reader's schema and the writer's."""
    dice = random.Random(seed)
    draft = dice.choice([NEWEST, NEWEST, SEVENTH, ""])
    maker = Maker(dice, draft)
    writer = maker.schema()
    reader = writer if dice.random() < 0.85 else maker.schema()
    for _ in range(dice.choice([1, 1, 2, 3])):
        reader = maker.changed(reader)
        if dice.random() < 0.3:
            writer = maker.changed(writer)
    definition = maker.schema(1)
    other = maker.changed(definition) if dice.random() < 0.3 else definition
    return draft, rooted(draft, reader, other), rooted(draft, writer, definition)


def rooted(draft: str, schema: Any, definition: Any) -> Any:
    text = json.dumps([schema, definition])
    if isinstance(schema, bool):
        schema = {"allOf": [schema]}
    if '"$ref"' in json.dumps(definition):
        definition = {"type": "string"}  # no circles: validators do not end
    out = {"allOf": [schema]} if "$ref" in schema else dict(schema)
    if "$ref" in text:
        out["$defs"] = {"D": definition}
    return ({"$schema": draft} if draft else {}) | out


def verdict(reader: Any, writer: Any) -> bool:
    """Whether the registry calls them compatible."""
    form = FORMATS["JSON"]
    return not form.parse(json.dumps(reader), ()).problems_reading(form.parse(json.dumps(writer), ()))


def witnesses(draft: str, reader: Any, writer: Any) -> Iterator[Any]:
    """Documents that are valid for the writer and not for the reader."""
    for validator in VALIDATORS[draft]:
        if validator is Draft202012Validator and not draft:
            judge = Draft202012Validator(Draft202012Validator.META_SCHEMA)
            if not (judge.is_valid(reader) and judge.is_valid(writer)):
                continue
        new, old = validator(reader), validator(writer)
        yield from (document for document in POOL if old.is_valid(document) and not new.is_valid(document))


class UnjudgedError(Exception):
    """jsonschema itself fails on the pair; the message shows it."""


def first_witness(draft: str, reader: Any, writer: Any) -> Any | None:
    """None if no document of the pool shows that the pair is not compatible."""
    try:
        return next(witnesses(draft, reader, writer), None)
    except TypeError as error:  # some keywords compare values of different types
        raise UnjudgedError(f"{error!r}\n  reader {json.dumps(reader)}\n  writer {json.dumps(writer)}") from error


def main() -> int:
    parser = argparse.ArgumentParser(description="Look for pairs that are called compatible and are not.")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    chosen = parser.parse_args()
    found = compatible = refused = skipped = 0
    for seed in range(chosen.first, chosen.first + chosen.count):
        draft, reader, writer = pair(seed)
        try:
            witness = first_witness(draft, reader, writer)
        except UnjudgedError as error:
            skipped += 1
            print(f"seed {seed}: skipped, jsonschema fails: {error}")
            continue
        if verdict(reader, writer):
            compatible += 1
            if witness is not None:
                found += 1
                print(
                    f"seed {seed}: {json.dumps(witness)}\n  reader {json.dumps(reader)}\n  writer {json.dumps(writer)}"
                )
        elif witness is None:
            refused += 1
    print(f"{chosen.count} pairs, {compatible} called compatible, {found} of them wrongly; "
          f"{refused} called incompatible without a witness in the pool; {skipped} skipped")  # fmt: skip
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
