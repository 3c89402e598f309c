"""The families of cases. Each is a function that sends requests about one subject through a `Case`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from penstock_differential.case import Case

F = TypeVar("F", bound=Callable[[Case], None])


@dataclass(frozen=True)
class Family:
    """A kind of case: its APIs, its frequency, whether it also runs on three brokers, and whether it runs on services
    with an authorizer only."""

    name: str
    run: Callable[[Case], None]
    apis: frozenset[str]
    weight: int
    cluster: bool
    has_authorizer: bool


FAMILIES: dict[str, Family] = {}


def family(*apis: str, weight: int = 1, cluster: bool = True, has_authorizer: bool = False) -> Callable[[F], F]:
    """Register a function as the family of the same name."""

    def register(function: F) -> F:
        name = function.__name__
        FAMILIES[name] = Family(name, function, frozenset(apis), weight, cluster, has_authorizer)
        return function

    return register


def everything() -> dict[str, Family]:
    """Return all families; imports the modules that register them."""
    from penstock_differential.families import (  # noqa: F401
        acls,
        groups,
        malformed,
        migrations,
        quotas,
        records,
        scram,
        share_groups,
        topics,
        transactions,
        transactions_v2,
    )

    return FAMILIES
