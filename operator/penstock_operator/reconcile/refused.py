"""The status of an object that cannot be what its kind says. Written by `engine.refusals`.

The schema refuses most of that; what was stored under another schema is refused here. What was known of the object
stays as it was, with the generation that it was said of; condition Ready says which field is wrong.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock_operator.model.common import Condition, with_conditions
from penstock_operator.model.parse import InvalidResource, status_of
from penstock_operator.ports.kube import Object

INVALID_SPEC = "InvalidSpec"
MAX_MESSAGE_CHARS = 1000


def refused_status(error: InvalidResource, body: Object, at: str) -> Object:
    """`at` is the time (RFC 3339) of the condition, where it changes now."""
    before = status_of(error.kind, body)
    generation = _number(body["metadata"].get("generation"))
    ready = Condition(
        type="Ready",
        status="False",
        reason=INVALID_SPEC,
        message=f"{error.field}: {error.reason}. Nothing is done about this object until that is mended"[
            :MAX_MESSAGE_CHARS
        ],
        observed_generation=generation,
    )
    others = tuple(known for known in before.conditions if known.type != ready.type)
    conditions = (*with_conditions(before.conditions, (ready,), at), *others)
    status = msgspec.structs.replace(before, conditions=conditions, observed_generation=generation)
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(status))
    return made


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
