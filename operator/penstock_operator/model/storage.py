"""Volumes, of brokers and of an etcd beside them; parts of `cluster` and `etcd`."""

from __future__ import annotations

from typing import Annotated

from penstock_operator.model.common import Model
from penstock_operator.model.fields import Rule, doc, unchanged


def size_rules() -> tuple[Rule, ...]:
    return (
        Rule(
            "isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
            "size must be a quantity above 0, such as 10Gi",
        ),
        Rule(
            "!isQuantity(self) || quantity(self).compareTo(quantity(oldSelf)) >= 0",
            "size may only grow, as a volume cannot shrink: for smaller ones make a new Cluster",
        ),
    )


class StorageSpec(Model, frozen=True, kw_only=True):
    rules = (
        Rule(
            unchanged("className"),
            "className cannot be changed, volumes stay in their class: make a new Cluster with the other one",
        ),
    )

    size: Annotated[
        str,
        doc(
            "How large each volume is. It may grow where the class allows it.",
            *size_rules(),
            min_length=1,
            max_length=32,
        ),
    ] = "10Gi"
    class_name: (
        Annotated[
            str, doc("The StorageClass; the default one where none is given. Fixed.", min_length=1, max_length=253)
        ]
        | None
    ) = None


class SidecarStorageSpec(StorageSpec, frozen=True, kw_only=True):
    size: Annotated[
        str,
        doc(
            "How large the volume of each etcd is. It may grow where the class allows it.",
            *size_rules(),
            min_length=1,
            max_length=32,
        ),
    ] = "2Gi"
