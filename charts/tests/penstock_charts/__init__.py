"""Shared code of the chart tests: helm's rendering, pods of rendered objects, and checks of schemas."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

# The default Kubernetes version is older in a helm that was built from source.
RENDER = ["--kube-version", "1.33.0", "--namespace", "queue"]

Document = dict[str, Any]


def render(helm: str, chart: Path, *options: str, name: str = "penstock") -> list[Document]:
    command = [helm, "template", name, str(chart), *RENDER, *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    documents = [msgspec.yaml.decode(text) for text in re.split(r"^---\n", result.stdout, flags=re.MULTILINE)]
    return sorted((d for d in documents if d), key=lambda d: (d["kind"], d["metadata"]["name"]))


def refusal(helm: str, chart: Path, *options: str) -> str:
    command = [helm, "template", "penstock", str(chart), *RENDER, *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode != 0, "it was rendered"
    return result.stderr


def pods(documents: list[Document]) -> list[tuple[str, Document]]:
    """Return the pods that the objects create, with the name of their object."""
    found = []
    for document in documents:
        if document["kind"] == "Pod":
            found.append((document["metadata"]["name"], document["spec"]))
        elif "template" in (document.get("spec") or {}):
            found.append((document["metadata"]["name"], document["spec"]["template"]["spec"]))
    return found


def other_than_text(part: Any, path: str = "") -> set[str]:
    """Return the paths of numbers, booleans and nulls, without list indices."""
    if isinstance(part, dict):
        return {found for key, value in part.items() for found in other_than_text(value, f"{path}.{key}")}
    if isinstance(part, list):
        return {found for value in part for found in other_than_text(value, f"{path}[]")}
    return set() if isinstance(part, str) else {path}


def free_texts(schema: Document, values: Any, part: Document, text: str, path: str = "") -> Iterator[str]:
    """Yield the paths of values that accept `text`."""
    part = schema["$defs"][part["$ref"].rsplit("/", 1)[1]] if "$ref" in part else part
    if isinstance(values, dict):
        for key, value in values.items():
            if key in part.get("properties", {}):
                yield from free_texts(schema, value, part["properties"][key], text, f"{path}.{key}".lstrip("."))
    elif (
        "string" in (kinds := part.get("type", ()))
        and "integer" not in kinds
        and "enum" not in part
        and re.search(part.get("pattern", ""), text)
    ):
        yield path


def closed(schema: Any, path: str = "") -> list[str]:
    """Return paths of objects that accept unknown names, except maps and objects that Kubernetes validates."""
    found = []
    if isinstance(schema, dict):
        if schema.get("properties") is not None and schema.get("additionalProperties") is not False:
            found.append(path)
        for key, part in schema.items():
            found += closed(part, f"{path}/{key}")
    elif isinstance(schema, list):
        for index, part in enumerate(schema):
            found += closed(part, f"{path}/{index}")
    return found


def missing(schema: Document, values: Any, part: Document, path: str = "") -> list[str]:
    """Return the paths that only the values or only the schema have."""
    part = schema["$defs"][part["$ref"].rsplit("/", 1)[1]] if "$ref" in part else part
    if not isinstance(values, dict) or "properties" not in part:
        return []
    found = [f"{path}.{key}" for key in set(values) ^ set(part["properties"]) - {"global", "claims"}]
    for key in set(values) & set(part["properties"]):
        found += missing(schema, values[key], part["properties"][key], f"{path}.{key}")
    return found
