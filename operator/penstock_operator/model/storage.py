"""Volumes of brokers and of sidecar etcd members."""

from __future__ import annotations

from typing import Annotated

from penstock_operator.model.common import Model
from penstock_operator.model.fields import Rule, doc, unchanged


def size_rules() -> tuple[Rule, ...]:
    """Return the rules for volume sizes.

    A size below that of the volumes is not refused here but by condition Storage, so that a size that was never reached
    can be taken back, for example if the StorageClass does not allow expansion.
    """
    return (
        Rule(
            "isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
            "size must be a quantity greater than 0, such as 10Gi",
        ),
    )


class StorageSpec(Model, frozen=True, kw_only=True):
    """Volume of each broker."""

    rules = (
        Rule(
            unchanged("className"),
            "className cannot be changed: existing volumes keep their StorageClass; create a new Cluster with the other"
            " class",
        ),
    )

    size: Annotated[
        str,
        doc(
            "Size of each volume. It can be increased if the StorageClass allows expansion; volumes never shrink.",
            *size_rules(),
            min_length=1,
            max_length=32,
        ),
    ] = "10Gi"
    class_name: (
        Annotated[
            str, doc("StorageClass. Default: the cluster's default class. Immutable.", min_length=1, max_length=253)
        ]
        | None
    ) = None


class CompanionStorageSpec(Model, frozen=True, kw_only=True):
    """Volume of each member of the etcd of `statefulSet`."""

    size: Annotated[
        str,
        doc(
            "Size of the volume of each member. The operator expands their claims one at a time if the StorageClass"
            " allows expansion; volumes never shrink.",
            *size_rules(),
            min_length=1,
            max_length=32,
        ),
    ]


class SidecarStorageSpec(StorageSpec, frozen=True, kw_only=True):
    """Volume of each sidecar etcd member."""

    size: Annotated[
        str,
        doc(
            "Size of the volume of each etcd member. It can be increased if the StorageClass allows expansion; volumes"
            " never shrink.",
            *size_rules(),
            min_length=1,
            max_length=32,
        ),
    ] = "2Gi"
