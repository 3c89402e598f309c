"""Comparison of live with rendered objects. Fields that only the live object has (defaults, other managers) are
ignored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from penstock_operator.ports.kube import Object
from penstock_operator.specs import names, quantity

_IDENTITIES = ("name", "mountPath", "containerPort", "port", "uid")
"""Merge keys of lists in the API server, in order of preference."""


def digest(value: Any) -> str:
    """Return a hash of a JSON value, 16 hex digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def rendered(body: Object) -> Object:
    """Return `body` with an annotation that contains its hash."""
    annotations = {**body["metadata"].get("annotations", {}), names.RENDERED: digest(body)}
    return {**body, "metadata": {**body["metadata"], "annotations": annotations}}


def difference(desired: Any, live: Any, path: str = "") -> str | None:
    """Return the path of the first value that `live` lacks or that differs; None if there is none."""
    if desired == live:
        return None
    if isinstance(desired, Mapping):
        if not isinstance(live, Mapping):
            return None if not desired and live is None else path or "."
        for key, item in desired.items():
            if (found := difference(item, live.get(key), f"{path}.{key}")) is not None:
                return found
        return None
    if isinstance(desired, (list, tuple)):
        return _list_difference(list(desired), live, path)
    if desired in (None, "") and live in (None, ""):
        return None
    if isinstance(desired, (str, int)) and isinstance(live, (str, int)) and _is_amount(path):
        return None if quantity.same(str(desired), str(live)) else path
    return path


def _list_difference(desired: list[Any], live: Any, path: str) -> str | None:
    if not desired and live is None:
        return None
    if not isinstance(live, list):
        return path
    identity = _identity_of(desired)
    if identity is None:
        if len(desired) != len(live):
            return path
        pairs = list(zip(desired, live, strict=True))
    else:
        by_name = {item.get(identity): item for item in live if isinstance(item, Mapping)}
        pairs = [(item, by_name.get(item[identity])) for item in desired]
    for number, (one, other) in enumerate(pairs):
        at = f"{path}[{number if identity is None else one[identity]}]"
        if (found := difference(one, other, at)) is not None:
            return found
    return None


def _identity_of(items: list[Any]) -> str | None:
    for name in _IDENTITIES:
        if items and all(isinstance(item, Mapping) and name in item for item in items):
            return name
    return None


def _is_amount(path: str) -> bool:
    return ".limits." in path or ".requests." in path or path.endswith(".sizeLimit")
