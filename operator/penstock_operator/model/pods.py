"""Schemas of the pod fields of a `Cluster`, detailed enough to reject common mistakes at `kubectl apply`."""

from __future__ import annotations

from typing import Any

from penstock_operator.model.fields import Rule

_QUANTITY: dict[str, Any] = {"x-kubernetes-int-or-string": True, "maxLength": 32}
_AMOUNTS: dict[str, Any] = {"type": "object", "maxProperties": 16, "additionalProperties": _QUANTITY}
_TEXT: dict[str, Any] = {"type": "string", "maxLength": 317}

ANYTHING: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

LABEL_VALUE: dict[str, Any] = {"maxLength": 63}

_IS_QUANTITY = Rule(
    "self.all(k, type(self[k]) == int || isQuantity(self[k]))",
    "each value must be a quantity, such as 500m, 2 or 4Gi",
)

RESOURCES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "requests": {"description": "Resources reserved for the container.", **_AMOUNTS, "rules": (_IS_QUANTITY,)},
        "limits": {"description": "Maximum resources of the container.", **_AMOUNTS, "rules": (_IS_QUANTITY,)},
    },
}

TOLERATIONS: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "key": _TEXT,
            "operator": {"type": "string", "enum": ["Exists", "Equal"]},
            "value": _TEXT,
            "effect": {"type": "string", "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
            "tolerationSeconds": {"type": "integer", "format": "int64"},
        },
    },
}

SPREAD: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["maxSkew", "topologyKey", "whenUnsatisfiable"],
        "properties": {
            "maxSkew": {"type": "integer", "minimum": 1},
            "topologyKey": _TEXT,
            "whenUnsatisfiable": {"type": "string", "enum": ["DoNotSchedule", "ScheduleAnyway"]},
        },
        "x-kubernetes-preserve-unknown-fields": True,
    },
}

PULL_SECRETS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "maxLength": 253}}},
}
