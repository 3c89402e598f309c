"""Brings the CustomResourceDefinitions up to date: `python -m penstock_operator.crds DIR`, a hook of the chart.

Helm makes CRDs once and never again touches them. This applies those in DIR (*.yaml, one each) server-side, except
where the API server has one of a newer release: an operator that is taken back must not take fields away from objects
that are stored already. Exit code 0: they are there and the API server serves them.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from penstock_operator.ports.kube import KubeError, KubeResource, Object

DEFINITIONS = KubeResource("apiextensions.k8s.io", "v1", "customresourcedefinitions", is_namespaced=False)
VERSION_ANNOTATION = "penstock.io/crd-version"
"""The release that a CRD belongs to, such as 1.10.0."""
PATIENCE_S = 60.0


class Definitions(Protocol):
    """What of `ports.kube.Kube` is needed."""

    async def get(self, resource: KubeResource, namespace: str, name: str) -> Object | None: ...

    async def apply(self, resource: KubeResource, namespace: str, body: Object) -> Object: ...


class BadDefinition(Exception):
    """A file that is no CRD with a version."""


def version_of(definition: Object) -> tuple[int, ...]:
    """The release that it belongs to; () where it says none, which is older than any."""
    text = str((definition["metadata"].get("annotations") or {}).get(VERSION_ANNOTATION, ""))
    return tuple(int(number) for number in text.split(".")) if re.fullmatch(r"\d{1,9}(\.\d{1,9}){0,3}", text) else ()


def read(folder: Path) -> list[Object]:
    """The CRDs in a folder, by file name. Raises `BadDefinition` naming the file."""
    definitions = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            document = msgspec.yaml.decode(path.read_bytes())
        except msgspec.DecodeError as error:
            raise BadDefinition(f"{path} is no YAML: {error}") from error
        if not isinstance(document, dict) or document.get("kind") != "CustomResourceDefinition":
            raise BadDefinition(f"{path} holds no CustomResourceDefinition")
        if not version_of(document):
            raise BadDefinition(f"{path} has no annotation {VERSION_ANNOTATION} that is a version such as 1.2.0")
        definitions.append(document)
    if not definitions:
        raise BadDefinition(f"{folder} holds no *.yaml")
    return definitions


async def update(definitions: Sequence[Object], kube: Definitions, tell: Callable[[str], None]) -> None:
    """Apply what is not older than what is there, and tell of each what was done."""
    for definition in definitions:
        name = definition["metadata"]["name"]
        there = await kube.get(DEFINITIONS, "", name)
        ours, theirs = version_of(definition), version_of(there) if there else ()
        if theirs > ours:
            tell(f"{name}: left as it is, of release {_text(theirs)}, newer than {_text(ours)}")
            continue
        await kube.apply(DEFINITIONS, "", definition)
        tell(f"{name}: of release {_text(ours)} now, was {_text(theirs) if there else 'missing'}")


async def until_served(definitions: Sequence[Object], kube: Definitions, patience_s: float = PATIENCE_S) -> list[str]:
    """Wait until objects of each can be made; return the names of those that were not served in time."""
    until = asyncio.get_running_loop().time() + patience_s
    names = [definition["metadata"]["name"] for definition in definitions]
    while True:
        names = [name for name in names if not _is_served(await kube.get(DEFINITIONS, "", name))]
        if not names or asyncio.get_running_loop().time() >= until:
            return names
        await asyncio.sleep(0.2)


def _is_served(definition: Object | None) -> bool:
    conditions = ((definition or {}).get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)


def _text(version: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in version) or "unknown"


async def _run(folder: Path) -> int:
    # Here, so that --help and bad files need no API server's client, which takes long to import.
    from penstock.runtime.clock import SystemClock
    from penstock_operator.kube.client import KubeClient
    from penstock_operator.kube.events import Events
    from penstock_operator.kube.http import Requests, configuration

    definitions = read(folder)
    requests = Requests(configuration())
    kube = KubeClient(requests, Events(requests, SystemClock(), "crds", lambda error: None))
    try:
        await update(definitions, kube, _say)
        missing = await until_served(definitions, kube)
    finally:
        requests.close()
    if missing:
        sys.stderr.write(f"not served after {PATIENCE_S:.0f} s: {', '.join(missing)}\n")
    return 1 if missing else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code; says on standard error what went wrong."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m penstock_operator.crds DIR\n")
        return 2
    try:
        return asyncio.run(_run(Path(arguments[0])))
    except (BadDefinition, KubeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
