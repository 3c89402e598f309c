"""Updates the CustomResourceDefinitions: `python -m penstock_operator.crds DIR`, run by the chart's hook.

Helm creates CRDs but never updates them. This command applies the CRDs in DIR (*.yaml, one per file) server-side. It
skips a CRD if the API server has one of a newer release: an operator downgrade must not remove fields from stored
objects. Exit code 0: all CRDs exist and the API server serves them.
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
"""Annotation with the release of a CRD, such as 1.10.0."""
SERVED_TIMEOUT_S = 60.0


class Definitions(Protocol):
    """The part of `ports.kube.Kube` that this module uses."""

    async def get(self, resource: KubeResource, namespace: str, name: str) -> Object | None:
        """Return the object, or None if it does not exist."""

    async def apply(self, resource: KubeResource, namespace: str, body: Object) -> Object:
        """Apply the object server-side."""


class BadDefinition(Exception):
    """A file that does not contain a CRD with a version."""


def version_of(definition: Object) -> tuple[int, ...]:
    """Return the release of a CRD; () if it has none, which sorts before all releases."""
    text = str((definition["metadata"].get("annotations") or {}).get(VERSION_ANNOTATION, ""))
    return tuple(int(number) for number in text.split(".")) if re.fullmatch(r"\d{1,9}(\.\d{1,9}){0,3}", text) else ()


def read_definitions(folder: Path) -> list[Object]:
    """Return the CRDs in a folder, sorted by file name. Raises `BadDefinition`."""
    definitions = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            document = msgspec.yaml.decode(path.read_bytes())
        except msgspec.DecodeError as error:
            raise BadDefinition(f'"{path}" is not valid YAML: {error}') from error
        if not isinstance(document, dict) or document.get("kind") != "CustomResourceDefinition":
            raise BadDefinition(f'"{path}" does not contain a CustomResourceDefinition')
        if not version_of(document):
            raise BadDefinition(f'"{path}" has no annotation {VERSION_ANNOTATION} with a version such as 1.2.0')
        definitions.append(document)
    if not definitions:
        raise BadDefinition(f'"{folder}" contains no *.yaml files')
    return definitions


async def update(definitions: Sequence[Object], kube: Definitions, report: Callable[[str], None]) -> None:
    """Apply each CRD unless the API server has a newer one. Call `report` with one line per CRD."""
    for definition in definitions:
        name = definition["metadata"]["name"]
        current = await kube.get(DEFINITIONS, "", name)
        shipped, installed = version_of(definition), version_of(current) if current else ()
        if installed > shipped:
            report(f"{name}: unchanged; installed release {_text(installed)} is newer than {_text(shipped)}")
            continue
        await kube.apply(DEFINITIONS, "", definition)
        report(f"{name}: updated to release {_text(shipped)} (was {_text(installed) if current else 'missing'})")


async def wait_until_served(
    definitions: Sequence[Object], kube: Definitions, patience_s: float = SERVED_TIMEOUT_S
) -> list[str]:
    """Wait until the API server serves all CRDs. Return the names of the CRDs that are not served after
    `patience_s`."""
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
    # Imported here because the Kubernetes client is slow to import and usage errors do not need it.
    from penstock.runtime.clock import SystemClock
    from penstock_operator.kube.client import KubeClient
    from penstock_operator.kube.events import EventRecorder
    from penstock_operator.kube.http import Requests, configuration

    definitions = read_definitions(folder)
    requests = Requests(configuration())
    kube = KubeClient(requests, EventRecorder(requests, SystemClock(), "crds", lambda error: None))
    try:
        await update(definitions, kube, _print_line)
        missing = await wait_until_served(definitions, kube)
    finally:
        requests.close()
    if missing:
        sys.stderr.write(f"CRDs not served by the API server after {SERVED_TIMEOUT_S:.0f} s: {', '.join(missing)}\n")
    return 1 if missing else 0


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")


def main(arguments: Sequence[str]) -> int:
    """Run the command. Return the exit code; errors go to standard error."""
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
