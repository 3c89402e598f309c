"""The codec writes and reads the same bytes as kio, an independent implementation generated from Kafka's schemas."""

from __future__ import annotations

import importlib
import io
import random
import re
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer
from wire_kit import name_of_case, payloads, random_message, versions

from penstock.wire import codec
from penstock.wire.apis import request_header_version, response_header_version
from penstock.wire.schema import Payload


def oracle(cls: type[Payload], version: int) -> Any:
    """Return kio's class for the same message."""
    name = cls.__name__
    kind = "request" if name.endswith("Request") else "response" if name.endswith("Response") else "data"
    stem = re.sub("(Request|Response)$", "", name)
    folder = re.sub(r"(?<!^)(?=[A-Z])", "_", stem).lower()
    return getattr(importlib.import_module(f"kio.schema.{folder}.v{version}.{kind}"), name)


@pytest.mark.parametrize("cls", payloads(), ids=name_of_case)
def test_random_messages_are_the_same_bytes_both_ways(cls: type[Payload]) -> None:
    for version in versions(cls):
        theirs = oracle(cls, version)
        read, write = entity_reader(theirs), entity_writer(theirs)
        seed = f"{cls.__name__} {version}"
        print("seed", seed)  # noqa: T201
        rng = random.Random(seed)
        for number in range(12):
            message = random_message(cls, version, rng, own=False)
            ours = bytes(codec.encode(message, version))
            entity, size = read(ours, 0)
            assert size == len(ours), f"round {number}: kio reads all of {message}"
            out = io.BytesIO()
            write(out, entity)
            assert out.getvalue() == ours, f"round {number}: {message}"
            assert codec.decode(cls, version, out.getvalue()) == message


@pytest.mark.parametrize("cls", [c for c in payloads() if c.KEY >= 0], ids=name_of_case)
def test_headers_have_the_version_that_goes_with_the_message(cls: type[Payload]) -> None:
    for version in versions(cls):
        theirs = oracle(cls, version).__header_schema__.__version__
        of = request_header_version if cls.__name__.endswith("Request") else response_header_version
        assert of(cls.KEY, version) == theirs
