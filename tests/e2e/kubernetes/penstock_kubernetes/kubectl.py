"""kubectl in one namespace."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Object = dict[str, Any]


class Refused(Exception):
    """A command failed; the text is what it said."""


def run(*command: str, stdin: str | None = None, timeout_s: float = 120) -> str:
    """Standard output. Raises `Refused` with standard error."""
    try:
        result = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired as late:
        raise Refused(str(late)) from None
    if result.returncode:
        raise Refused(f"{' '.join(command)}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}".strip())
    return result.stdout


def eventually(what: str, look: Callable[[], T | None], patience_s: float = 120, every_s: float = 0.5) -> T:
    """What `look` finds, once that is true. Fails naming what was waited for and what was seen last. A command that
    fails meanwhile, as one may on a machine that is busy, has found nothing."""
    until = time.monotonic() + patience_s
    while True:
        seen: object
        try:
            found = seen = look()
        except Refused as refused:
            found, seen = None, refused
        if found:
            return found
        if time.monotonic() > until:
            raise AssertionError(f"not within {patience_s:.0f} s: {what} (last seen: {seen!r})")
        time.sleep(every_s)


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Kinds may be short; those of Penstock are given in full (topics.penstock.io), as others have topics as well."""

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

    def wait(self, kind: str, name: str, condition: str = "Ready", *, patience_s: int = 180) -> None:
        self(
            "wait",
            f"--for=condition={condition}",
            f"{kind}/{name}",
            f"--timeout={patience_s}s",
            timeout_s=patience_s + 10,
        )

    def status(self, kind: str, name: str) -> Object:
        found = self.get(kind, name)
        return (found or {}).get("status") or {}

    def condition(self, kind: str, name: str, type_: str) -> Object:
        """The condition, if it is about the newest generation; else {}."""
        found = self.get(kind, name) or {}
        for condition in (found.get("status") or {}).get("conditions") or ():
            if condition["type"] == type_ and condition.get("observedGeneration") == found["metadata"]["generation"]:
                return dict(condition)
        return {}

    def until(self, kind: str, name: str, type_: str, status: str, *, patience_s: float = 180) -> Object:
        """Waits for a condition about the newest generation; returns it."""

        def look() -> Object | None:
            condition = self.condition(kind, name, type_)
            return condition if condition.get("status") == status else None

        return eventually(f"{kind}/{name} is {type_}={status}", look, patience_s)

    def events(self, name: str) -> list[str]:
        """Reasons of the Events about an object of that name."""
        found = self.list("events.events.k8s.io")
        return [event["reason"] for event in found if (event.get("regarding") or {}).get("name") == name]
