"""kubectl in one namespace, and polling."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Object = dict[str, Any]


class CommandFailed(Exception):
    """A command failed; the text is its output."""


def run(*command: str, stdin: str | None = None, timeout_s: float = 120) -> str:
    """Return standard output. Raises `CommandFailed` with the output if the command fails or times out."""
    try:
        result = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(str(error)) from None
    if result.returncode:
        raise CommandFailed(
            f"{' '.join(command)}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}".strip()
        )
    return result.stdout


def eventually(what: str, query: Callable[[], T | None], timeout_s: float = 120, every_s: float = 0.5) -> T:
    """Return the first true result of `query`. A failed command counts as no result, because it may have timed out on
    a busy machine. The `AssertionError` after `timeout_s` names the expectation and the last result."""
    deadline = time.monotonic() + timeout_s
    while True:
        last: object
        try:
            found = last = query()
        except CommandFailed as error:
            found, last = None, error
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what} (last result: {last!r})")
        time.sleep(every_s)


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl in a namespace. Kinds of Penstock are fully qualified (topics.penstock.io), because other products define
    topics as well."""

    namespace: str

    def __call__(self, *arguments: str, stdin: str | None = None, timeout_s: float = 120) -> str:
        return run("kubectl", "--namespace", self.namespace, *arguments, stdin=stdin, timeout_s=timeout_s)

    def apply(self, *objects: Object) -> str:
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        return self("apply", "-f", "-", stdin=items)

    def get(self, kind: str, name: str) -> Object | None:
        text = self("get", kind, name, "--ignore-not-found", "--output", "json")
        found: Object | None = json.loads(text) if text.strip() else None
        return found

    def list(self, kind: str, labels: str = "") -> list[Object]:
        options = ("--selector", labels) if labels else ()
        items: list[Object] = json.loads(self("get", kind, "--output", "json", *options))["items"]
        return items

    def patch(self, kind: str, name: str, change: Object) -> str:
        return self("patch", kind, name, "--type", "merge", "--patch", json.dumps(change))

    def wait(self, kind: str, name: str, condition: str = "Ready", *, timeout_s: int = 180) -> None:
        self(
            "wait",
            f"--for=condition={condition}",
            f"{kind}/{name}",
            f"--timeout={timeout_s}s",
            timeout_s=timeout_s + 10,
        )

    def status(self, kind: str, name: str) -> Object:
        found = self.get(kind, name)
        return (found or {}).get("status") or {}

    def condition(self, kind: str, name: str, type_: str) -> Object:
        """Return the condition if it has observed the latest generation, otherwise {}."""
        found = self.get(kind, name) or {}
        for condition in (found.get("status") or {}).get("conditions") or ():
            if condition["type"] == type_ and condition.get("observedGeneration") == found["metadata"]["generation"]:
                return dict(condition)
        return {}

    def until(self, kind: str, name: str, type_: str, status: str, *, timeout_s: float = 180) -> Object:
        """Wait for the status of a condition that has observed the latest generation; return the condition."""

        def query() -> Object | None:
            condition = self.condition(kind, name, type_)
            return condition if condition.get("status") == status else None

        return eventually(f"{kind}/{name} has {type_}={status}", query, timeout_s)

    def events(self, name: str) -> list[str]:
        """Return the reasons of the Events about the object."""
        return [event["reason"] for event in self.list("events") if event["involvedObject"].get("name") == name]
