"""Searches a namespace for the values of its Secrets: in logs of pods, and in what kubectl shows of every object."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

from secrets_kit import MIN_LENGTH, found, secret

from penstock_kubernetes.kubectl import CommandFailed, Kubectl

SECRET_KEYS = re.compile(r"(?:^|[.-])(?:password|key|jaas\.config)$")
"""Keys of Secrets whose values are secret; others are public, or files that consist of these."""
SECRETS = "secrets"


def register_secrets(kubectl: Kubectl) -> None:
    """Register what is secret in the namespace's Secrets, apart from texts that are shorter than `MIN_LENGTH`."""
    registered = 0
    for body in kubectl.list(SECRETS):
        for key, value in (body.get("data") or {}).items():
            text = base64.b64decode(value).decode(errors="replace").strip()
            if SECRET_KEYS.search(key) and len(text) >= MIN_LENGTH:
                secret(text)
                registered += 1
    assert registered, "the namespace has secrets"


def leaks(kubectl: Kubectl) -> list[str]:
    """Return a message for each registered secret that is outside of the Secrets."""
    return [leak for what, text in written(kubectl) for leak in found(what, text)]


def written(kubectl: Kubectl) -> Iterator[tuple[str, str]]:
    """Yield logs and objects, each with a title. Of Secrets, what `kubectl describe` shows: the sizes of values."""
    for pod in kubectl.list("pods"):
        name = pod["metadata"]["name"]
        yield f"logs of {name}", kubectl("logs", name, "--all-containers", "--tail=-1")
    for kind in kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name").split():
        try:
            yield f"describe {kind}", kubectl("describe", kind)
            if kind != SECRETS:
                yield f"get {kind}", kubectl("get", kind, "--output=yaml")
        except CommandFailed:
            if not kind.endswith("metrics.k8s.io"):  # a new pod has no metrics
                raise
