"""Random JSON schemas enforced on the embedded model: what ends by itself matches, always.

The model samples at temperature 1 with nothing filtered, so only the grammar keeps it to the
schema. Schemas that can't be enforced have to be refused before anything runs.

    python tests/structured/random_schemas.py --schemas 200 --seed 1
"""

import argparse
import json
import random
from collections import Counter
from typing import Any

import jsonschema_rs

from astrai_engine import EngineConfig, GenerationRequest, InferenceEngine
from astrai_engine.errors import InvalidRequestError
from astrai_engine.events import Failed, Finished, FinishReason, TokenDelta
from astrai_engine.grammar import Grammar

Schema = dict[str, Any]

NAMES = ("name", "age", "tags", "größe", "a b", 'quo"te', "$id", "x")
WORDS = ("red", "blue", "", "ünï", 'a "b"', "line\nbreak", "😀")
PATTERNS = ("^[a-f]{2,5}$", "^\\d{3}-\\d{4}$", "^(yes|no)$", "[0-9]+$", "^\\w+@\\w+\\.org$")
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email")
UNSUPPORTED: tuple[Schema, ...] = (
    {"not": {"type": "string"}},
    {"type": "array", "uniqueItems": True, "items": {"type": "integer"}},
    {"type": "array", "contains": {"type": "integer"}},
    {"if": {"type": "string"}, "then": {"minLength": 2}},
    {"type": "object", "propertyNames": {"pattern": "^a"}},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"$ref": "#/$defs/nowhere"},
    {"type": "string", "pattern": "(unclosed"},
    {"type": "integer", "minimum": 5, "maximum": 3},
)


class Schemas:
    """Makes random schemas; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def schema(self) -> Schema:
        """A schema, of which about one in eight asks for what can't be enforced."""
        schema = self.value(3)
        if self.random.random() < 0.12:
            odd = dict(self.random.choice(UNSUPPORTED))
            schema = {"type": "object", "properties": {"x": odd}, "required": ["x"]}
        if self.random.random() < 0.15:
            schema = {"$defs": {"inner": self.value(1)}, **self.referring(schema)}
        return schema

    def referring(self, schema: Schema) -> Schema:
        """A schema beside a reference."""
        properties = {"one": schema, "two": {"$ref": "#/$defs/inner"}}
        return {"type": "object", "properties": properties, "required": ["one", "two"]}

    def value(self, depth: int) -> Schema:
        """A schema of any kind, nested at most so deep."""
        scalars = [self.string, self.integer, self.number, self.boolean, self.null, self.enum]
        nested = [self.object, self.object, self.array, self.any_of, self.all_of]
        if depth and self.random.random() < 0.6:
            return self.random.choice(nested)(depth - 1)
        return self.random.choice(scalars)()

    def string(self) -> Schema:
        """A text: bounded, or of a pattern or a format."""
        kind = self.random.randrange(4)
        if kind == 0:
            return {"type": "string", "pattern": self.random.choice(PATTERNS)}
        if kind == 1:
            return {"type": "string", "format": self.random.choice(FORMATS)}
        low = self.random.randrange(5)
        return {"type": "string", "minLength": low, "maxLength": low + self.random.randrange(20)}

    def integer(self) -> Schema:
        """A whole number, most often between bounds."""
        low = self.random.randrange(-1000, 1000)
        bounds = {"minimum": low, "maximum": low + self.random.randrange(10_000)}
        schema: Schema = {"type": "integer", **bounds}
        if self.random.random() < 0.2:
            schema = {"type": "integer", "exclusiveMinimum": low}
        if self.random.random() < 0.2:
            schema = {"type": "integer", "multipleOf": self.random.choice((2, 5, 7))}
        return schema

    def number(self) -> Schema:
        """A number between bounds, or any."""
        low = self.random.randrange(-100, 100) / 4
        return self.random.choice(
            ({"type": "number"}, {"type": "number", "minimum": low, "maximum": low + 12.5})
        )

    def boolean(self) -> Schema:
        """True or false."""
        return {"type": "boolean"}

    def null(self) -> Schema:
        """Null, perhaps among others."""
        return self.random.choice(({"type": "null"}, {"type": ["null", "integer", "boolean"]}))

    def enum(self) -> Schema:
        """One of some values, or a constant."""
        values = self.random.sample([*WORDS, 1, 2.5, None, True], self.random.randrange(1, 5))
        return {"const": values[0]} if len(values) == 1 else {"enum": values}

    def object(self, depth: int) -> Schema:
        """An object; some of its properties are required, and others may be allowed."""
        names = self.random.sample(NAMES, self.random.randrange(1, 5))
        required = [name for name in names if self.random.random() < 0.6]
        schema: Schema = {
            "type": "object",
            "properties": {name: self.value(depth) for name in names},
            "required": required,
        }
        others = self.random.randrange(3)
        if others:
            schema["additionalProperties"] = False if others == 1 else self.value(0)
        return schema

    def array(self, depth: int) -> Schema:
        """A list of bounded length, or a tuple."""
        if self.random.random() < 0.25:
            items = [self.value(depth), self.value(0)]
            return {"type": "array", "prefixItems": items, "items": False}
        low = self.random.randrange(3)
        bounds = {"minItems": low, "maxItems": low + self.random.randrange(1, 4)}
        return {"type": "array", "items": self.value(depth), **bounds}

    def any_of(self, depth: int) -> Schema:
        """One of several."""
        return {"anyOf": [self.value(depth) for _ in range(self.random.randrange(2, 4))]}

    def all_of(self, depth: int) -> Schema:
        """Two objects at once."""
        return {"allOf": [{"properties": {"p": self.value(depth)}}, {"type": "object"}]}


def outcome(events: list[Any], schema: Schema) -> str:
    """What came of a schema, in a word; those with an exclamation mark must not happen."""
    end = events[-1]
    if isinstance(end, Failed):
        return f"failed! {end.error}"
    assert isinstance(end, Finished)
    text = "".join(event.text for event in events if isinstance(event, TokenDelta))
    try:
        value = json.loads(text)
    except ValueError:
        return "cut" if end.reason is FinishReason.LENGTH else f"no JSON! {text}"
    if not jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value):
        return f"does not match! {text}"
    return "valid" if end.reason is FinishReason.STOP else "closed at the limit, valid"


def run(num_schemas: int, seed: int, max_tokens: int) -> Counter[str]:
    """Enforce random schemas; prints what goes wrong, and gives how often what came of one."""
    made = Schemas(seed)
    counts: Counter[str] = Counter()
    with InferenceEngine(config=EngineConfig()) as engine:
        handles = []
        for number in range(num_schemas):
            schema = made.schema()
            try:
                request = GenerationRequest(
                    messages=[{"role": "user", "content": f"Make up something, number {number}."}],
                    grammar=Grammar.json_schema(schema),
                    max_tokens=max_tokens,
                    temperature=1.0,
                    top_k=0,
                    seed=seed * 1_000_003 + number,
                )
                handles.append((schema, engine.submit(request)))
            except InvalidRequestError:
                counts["refused"] += 1
        for schema, handle in handles:
            found = outcome(list(handle), schema)
            counts[found.split("!")[0] + "!" * ("!" in found)] += 1
            if "!" in found:
                print(json.dumps(schema), found)
    return counts


def main() -> None:
    """Run from the command line; the exit status is 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=400)
    options = parser.parse_args()
    counts = run(options.schemas, options.seed, options.max_tokens)
    for name, count in sorted(counts.items()):
        print(f"{count:4d} {name}")
    raise SystemExit(any("!" in name for name in counts))


if __name__ == "__main__":
    main()
