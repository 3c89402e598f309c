"""Completion for kubectl: `kubectl_complete-penstock WORD...` prints candidates for the last word.

kubectl calls it with the words after `kubectl penstock`. The last line is a number of cobra's protocol: 4 means that
file names are not candidates.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import typer

from penstock_operator.plugin import health
from penstock_operator.plugin.access import KubeOptions, NoAccess, ResourceReader, connect
from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, KubeError, KubeResource

NO_FILES = ":4"
TIMEOUT_S = 3.0
KIND_WORDS = ("cluster", "topic", "group", "user")
OPTIONS = {"-n": "namespace", "--namespace": "namespace", "--context": "context", "--kubeconfig": "kubeconfig"}
VALUES = {*OPTIONS, "-c", "--cluster", "-o", "--output", "--to", "--topic", "--partition"}
"""Options with a value."""


def parse_words(words: Sequence[str]) -> tuple[list[str], KubeOptions]:
    """Return the arguments without options, and kubectl's options."""
    arguments, found, before = list[str](), dict[str, str](), ""
    for word in words:
        if before:
            if before in OPTIONS:
                found[OPTIONS[before]] = word
            before = ""
        elif word in VALUES:
            before = word
        elif not word.startswith("-"):
            arguments.append(word)
    return arguments, KubeOptions(**found)


def static_candidates(commands: Sequence[str], arguments: Sequence[str], last: str) -> list[str]:
    """Return the candidates that need no API server. `last`: the option before the word, or ""."""
    if last in ("-o", "--output"):
        return ["text", "json"]
    if last == "--to":
        return ["earliest", "latest"]
    if not arguments:
        return list(commands)
    return list(KIND_WORDS) if arguments == ["why"] else ["all"] if arguments == ["restart"] else []


def listed_resource(arguments: Sequence[str], last: str) -> KubeResource | None:
    """Return the resource whose names are candidates."""
    if last in ("-c", "--cluster"):
        return CLUSTERS
    if len(arguments) == 2 and arguments[0] == "why" and (kind := health.kind_of(arguments[1])):
        return health.KINDS[kind]
    if list(arguments) == ["reset"]:
        return CONSUMER_GROUPS
    return CLUSTERS if list(arguments) in (["restart"], ["drain"]) else None


async def candidates(words: Sequence[str], commands: Sequence[str]) -> list[str]:
    """Return the candidates for the last word."""
    *before, word = words or [""]
    arguments, options = parse_words(before)
    last = before[-1] if before and before[-1] in VALUES else ""
    found = static_candidates(commands, arguments, last)
    if (resource := listed_resource(arguments, last)) is not None:
        reader = connect(options, timeout_s=TIMEOUT_S)
        try:
            found += await names_of(
                reader, resource, are_brokers=arguments[:1] in (["restart"], ["drain"]) and not last
            )
        finally:
            reader.close()
    return [candidate for candidate in found if candidate.startswith(word)]


async def names_of(reader: ResourceReader, resource: KubeResource, *, are_brokers: bool) -> list[str]:
    """Return the names of the objects, or the ids of the Clusters' brokers."""
    bodies = await reader.list_objects(resource)
    if are_brokers:
        return sorted({str(row["broker"]) for row in health.broker_rows(bodies)})
    return sorted(str(body["metadata"]["name"]) for body in bodies)


def main() -> None:
    """Entry point of `kubectl_complete-penstock`. Without an API server it prints what it knows."""
    from penstock_operator.plugin.main import app

    command = typer.main.get_command(app)
    commands = sorted(getattr(command, "commands", {}))
    try:
        found = asyncio.run(candidates(sys.argv[1:], commands))
    except (KubeError, NoAccess):
        found = []
    print("\n".join([*found, NO_FILES]))
