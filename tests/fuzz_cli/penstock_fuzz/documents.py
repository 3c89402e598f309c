"""Input files of the programs: jobs generated from the fields of their kinds, settings, properties, JSON lines."""

from __future__ import annotations

import json
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from penstock.config.broker import BROKER_SETTINGS
from penstock_fuzz.values import numbers, texts, trees, words
from penstock_spark.jobs.examples import example
from penstock_spark.jobs.spec.kinds import KINDS
from penstock_spark.jobs.spec.scalars import Duration, Size, Sql

LIKELY: dict[Any, st.SearchStrategy[Any]] = {
    str: st.sampled_from(["flights", "localhost:9092", "/tmp/x", "a_b", "earliest"]),
    int: st.integers(-2, 10),
    float: st.floats(0, 10),
    bool: st.booleans(),
    Duration: st.sampled_from(["1 day", "5m", "0 s", 7]),
    Size: st.sampled_from(["64 MiB", 1_000_000]),
    Sql: st.sampled_from(["value.id", "count(*)", "SELECT * FROM source"]),
}
leaves = texts | numbers | st.booleans() | st.none()
anything = trees(leaves)


def value_of(wanted: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Return values of a field's type, and in one of ten cases arbitrary ones."""
    fits = fitting(wanted, depth)
    return st.integers(0, 9).flatmap(lambda n: anything if n == 0 else fits)


def fitting(wanted: Any, depth: int) -> st.SearchStrategy[Any]:
    if wanted in LIKELY:
        return LIKELY[wanted] | words if wanted is str else LIKELY[wanted]
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        return fitting(inner[0], depth)
    if origin in (Union, types.UnionType):
        return st.one_of([fitting(option, depth) for option in inner])
    if origin is Literal:
        return st.sampled_from(list(inner))
    if origin is list:
        return st.lists(value_of(inner[0], depth + 1), max_size=3)
    if origin is dict:
        return st.dictionaries(
            st.sampled_from(["a", "0", "flights", "kafka.client.id"]) | words, value_of(inner[1], depth + 1), max_size=3
        )
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct) and depth < 5:
        return struct(wanted, depth + 1)
    return st.none()


def struct(cls: type[msgspec.Struct], depth: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    """Return mappings of a struct: required fields, some optional ones, sometimes an unknown one."""
    needed: dict[str, st.SearchStrategy[Any]] = {}
    others: dict[str, st.SearchStrategy[Any]] = {}
    for field in msgspec.structs.fields(cls):
        (needed if field.required else others)[field.name] = st.deferred(lambda t=field.type: value_of(t, depth))
    tag = cls.__struct_config__
    if tag.tag_field is not None:
        needed[tag.tag_field] = st.just(tag.tag)
    made = st.fixed_dictionaries(needed, optional=others)
    strange = st.dictionaries(words, anything, max_size=1)
    return st.integers(0, 19).flatmap(lambda n: st.builds(lambda a, b: {**a, **b}, made, strange) if n == 0 else made)


def dumped(document: Any) -> bytes:
    """Return JSON, which is YAML too; lone surrogates and control characters are escaped."""
    return json.dumps(document).encode()


EXAMPLES = [example(kind).encode() for kind in KINDS]


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """Draw an example with a part removed, duplicated or replaced."""
    data = draw(st.sampled_from(EXAMPLES))
    start = draw(st.integers(0, len(data)))
    stop = draw(st.integers(start, min(len(data), start + 40)))
    piece = draw(
        texts.map(lambda t: t.encode(errors="surrogateescape" if t.isascii() else "replace")) | st.binary(max_size=8)
    )
    return data[:start] + piece + data[stop:]


jobs = st.one_of([struct(cls) for cls in KINDS.values()]).map(dumped)
yamls = jobs | jobs | broken() | anything.map(dumped) | st.binary(max_size=64)

names = st.sampled_from(sorted(BROKER_SETTINGS)) | words
settings = st.dictionaries(names, words | numbers.map(str), max_size=4)
tomls = st.one_of(
    settings.map(lambda given: "\n".join(f"{json.dumps(n)} = {json.dumps(v)}" for n, v in given.items()).encode()),
    st.lists(
        st.sampled_from(["a", "=", "[", "]", ".", '"', "\n", "1", "num.partitions = ", "{", "}", "2026-01-01"])
    ).map(lambda parts: "".join(parts).encode()),
    st.integers(1, 2000).map(lambda depth: ("a." * depth + "b = 1").encode()),
    st.binary(max_size=64),
)
json_values = st.recursive(
    words | numbers | st.booleans() | st.none(),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(words, v, max_size=3),
)
json_fields = st.sampled_from(
    ["value", "key", "headers", "partition", "timestamp_ms", "value_base64", "key_base64", "x"]
)
lines = st.dictionaries(json_fields, json_values, max_size=5).map(lambda d: json.dumps(d).encode()) | st.binary(
    max_size=40
)
properties = st.lists(words | st.sampled_from(["a=b", "a:b", "a\\", "\\u12", "\\ud800", "#", "!", "= ="])).map(
    "\n".join
)
