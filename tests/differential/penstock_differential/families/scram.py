"""SCRAM credentials: users, mechanisms and iterations with edge cases, and several changes of a user in one request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock_differential.case import Case
from penstock_differential.families import family
from penstock_differential.values import Tree

ALTER, DESCRIBE = "AlterUserScramCredentials", "DescribeUserScramCredentials"
STEPS = 8
KEY_BYTES = {1: 32, 2: 64}
"""Size of the salted password by mechanism."""
MECHANISMS = (*(1, 2) * 6, 0, 3, -1)
VALID, INVALID = (4096, 4096, 8192, 16384), (4095, 16385, 0, -1, 2147483647)
"""Numbers of iterations."""
REPEATED = 0.3
"""Probability that a further change of a user stays in a request."""
SEVERAL_CHANGES = "a user has several changes"
"""Feature of a request."""
BOTH = "a request has deleted and created credentials for one mechanism"
"""Event of a case."""


def user(case: Case) -> str:
    """Return a user of the case, seldom one without a name."""
    names = (case.prefix, f"{case.prefix}-b", f"{case.prefix}-ä=,")
    return case.rng.choice(names) if case.rng.random() < 0.95 else ""


def upsertion(case: Case) -> Tree:
    """Return a credential to create or replace, mostly a valid one, with the sizes of clients."""
    mechanism = case.rng.choice(MECHANISMS)
    return {
        "name": user(case),
        "mechanism": mechanism,
        "iterations": case.rng.choice(VALID if case.rng.random() < 0.9 else INVALID),
        "salt": case.rng.randbytes(20),
        "salted_password": case.rng.randbytes(KEY_BYTES.get(mechanism, 32)),
    }


def without_repeated(case: Case, changes: Sequence[Tree], named: set[str]) -> list[Tree]:
    """Return the changes, mostly without those of users that are in `named`, and add their users to it."""
    kept = [one for one in changes if one["name"] not in named or case.rng.random() < REPEATED]
    named.update(one["name"] for one in kept)
    return kept


def most_faults(deletions: Sequence[Tree], upsertions: Sequence[Tree]) -> int:
    """Return the largest number of faults that the changes of one user may have; each deletion may be one."""
    faults = Counter(one["name"] for one in deletions)
    for name in repeated(deletions, upsertions):
        faults[name] += 1
    for one in upsertions:
        faults[one["name"]] += not (one["name"] and one["mechanism"] in KEY_BYTES and one["iterations"] in VALID)
    return max(faults.values(), default=0)


def repeated(deletions: Sequence[Tree], upsertions: Sequence[Tree]) -> list[str]:
    """Return the users with more than one change."""
    return [name for name, times in Counter(one["name"] for one in (*deletions, *upsertions)).items() if times > 1]


def alter(case: Case) -> None:
    """Delete and upsert credentials in one request."""
    named: set[str] = set()
    drawn = [
        {"name": user(case), "mechanism": case.rng.choice(MECHANISMS)} for _ in range(case.rng.choice([0, 0, 1, 1, 2]))
    ]
    deletions = without_repeated(case, drawn, named)
    drawn = [upsertion(case) for _ in range(case.rng.choice([0, 1, 1, 1, 2]))]
    upsertions = without_repeated(case, drawn, named)
    case.note_faults(most_faults(deletions, upsertions))
    if repeated(deletions, upsertions):
        case.features.add(SEVERAL_CHANGES)
    answer = case.ask(ALTER, {"deletions": deletions, "upsertions": upsertions}, 0)
    changed = {one["user"] for one in answer["results"] if not one["error_code"]}
    deleted, upserted = (
        {one["mechanism"] for one in part if one["name"] in changed} for part in (deletions, upsertions)
    )
    if deleted & upserted:
        case.events.add(BOTH)


@family(ALTER, DESCRIBE, weight=3)
def scram_credentials(case: Case) -> None:
    """Deletions and upsertions of the same and of other users, and what is described afterwards."""
    for _ in range(STEPS):
        alter(case)
        named = [{"name": user(case)} for _ in range(case.rng.choice([1, 1, 2, 3]))]
        case.ask(DESCRIBE, {"users": case.rng.choice([named, named, named, [], None])}, 0)
