"""What the tests of each chart are written in: helm's rendering, the pods in it, and what a schema lacks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

# Helm's own default is older where it was built from source.
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
    """The pods that objects make, by the object's name."""
    found = []
    for document in documents:
        if document["kind"] == "Pod":
            found.append((document["metadata"]["name"], document["spec"]))
        elif "template" in (document.get("spec") or {}):
            found.append((document["metadata"]["name"], document["spec"]["template"]["spec"]))
    return found


def other_than_text(part: Any, path: str = "") -> set[str]:
    """Where numbers, truth values and nothing stand: paths without the indices of lists."""
    if isinstance(part, dict):
        return {found for key, value in part.items() for found in other_than_text(value, f"{path}.{key}")}
    if isinstance(part, list):
        return {found for value in part for found in other_than_text(value, f"{path}[]")}
    return set() if isinstance(part, str) else {path}


def free_texts(schema: Document, values: Any, part: Document, text: str, path: str = "") -> Iterator[str]:
    """Paths of the values that may be `text`."""
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
    """Objects of the schema that would take any name, save maps and what Kubernetes checks itself."""
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
    """Paths of values that the schema does not have, or the other way round."""
    part = schema["$defs"][part["$ref"].rsplit("/", 1)[1]] if "$ref" in part else part
    if not isinstance(values, dict) or "properties" not in part:
        return []
    found = [f"{path}.{key}" for key in set(values) ^ set(part["properties"]) - {"global", "claims"}]
    for key in set(values) & set(part["properties"]):
        found += missing(schema, values[key], part["properties"][key], f"{path}.{key}")
    return found
