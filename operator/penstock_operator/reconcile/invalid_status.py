"""The status of an invalid object. Written by `engine.invalid_objects`.

The CRD schema rejects most invalid objects; these were stored under another schema version. The rest of the status is
kept, and condition Ready names the invalid field.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock_operator.model.common import Condition, with_conditions
from penstock_operator.model.parse import InvalidResource, status_of
from penstock_operator.ports.kube import Object

INVALID_SPEC = "InvalidSpec"
MAX_MESSAGE_CHARS = 1000


def invalid_status(error: InvalidResource, body: Object, at: str) -> Object:
    """Return the status with condition Ready False. `at`: transition time (RFC 3339) if the condition changes."""
    before = status_of(error.kind, body)
    generation = _number(body["metadata"].get("generation"))
    ready = Condition(
        type="Ready",
        status="False",
        reason=INVALID_SPEC,
        message=f"{error.field}: {error.reason}. The operator ignores this object until it is fixed"[
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
