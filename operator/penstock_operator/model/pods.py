"""Schemas of the pod fields of a `Cluster`, detailed enough to reject common mistakes at `kubectl apply`."""

from __future__ import annotations

from typing import Any

from penstock_operator.model.fields import Rule

_QUANTITY: dict[str, Any] = {"x-kubernetes-int-or-string": True, "maxLength": 32}
_AMOUNTS: dict[str, Any] = {"type": "object", "maxProperties": 8, "additionalProperties": _QUANTITY}
_TEXT: dict[str, Any] = {"type": "string", "maxLength": 317}

ANYTHING: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

LABEL_VALUE: dict[str, Any] = {"maxLength": 63}

_IS_QUANTITY = Rule(
    "self.all(k, type(self[k]) == int || isQuantity(self[k]))",
    "each value must be a quantity, such as 500m, 2 or 4Gi",
)

_WITHIN_LIMITS = Rule(
    "!has(self.requests) || !has(self.limits) || ['cpu', 'memory'].all(k,"
    " !(k in self.requests) || !(k in self.limits)"
    " || quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)",
    "requests must not exceed limits: Kubernetes creates no pod with such resources; lower the request, or raise the"
    " limit",
)
"""For these two only: the API server bounds the estimated costs of all rules of a CRD together."""

RESOURCES: dict[str, Any] = {
    "type": "object",
    "rules": (_WITHIN_LIMITS,),
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
            "key": {"description": "Key of the taint. Default: all keys.", **_TEXT},
            "operator": {"description": "Relation of key and value.", "type": "string", "enum": ["Exists", "Equal"]},
            "value": {"description": "Value of the taint.", **_TEXT},
            "effect": {
                "description": "Effect of the taint. Default: all effects.",
                "type": "string",
                "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"],
            },
            "tolerationSeconds": {
                "description": "Time for which a taint with effect NoExecute is tolerated. Default: forever.",
                "type": "integer",
                "format": "int64",
            },
        },
    },
}

SPREAD: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["maxSkew", "topologyKey", "whenUnsatisfiable"],
        "properties": {
            "maxSkew": {
                "description": "Maximum difference of the numbers of pods in two domains.",
                "type": "integer",
                "minimum": 1,
            },
            "topologyKey": {"description": "Node label whose values are the domains.", **_TEXT},
            "whenUnsatisfiable": {
                "description": "What the scheduler does with a pod that would exceed maxSkew.",
                "type": "string",
                "enum": ["DoNotSchedule", "ScheduleAnyway"],
            },
        },
        "x-kubernetes-preserve-unknown-fields": True,
    },
}

PULL_SECRETS: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"description": "Name of the Secret.", "type": "string", "maxLength": 253}},
    },
}
