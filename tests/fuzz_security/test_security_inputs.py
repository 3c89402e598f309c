"""A cut of the security fuzz in each test run; `make fuzz-security` runs a million inputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from penstock_fuzz_security.mutations import Draws
from penstock_fuzz_security.surfaces import Surfaces

SEED = 1
INPUTS = 100
"""Inputs of each surface."""
NAMES = (
    "plain", "scram", "oauthbearer", "key_set", "tls", "key_store", "distinguished_name", "mapping_rules", "jaas",
    "acl", "sasl_frames", "plain_text", "admin_requests",
)  # fmt: skip


@pytest.fixture(scope="module")
def surfaces() -> Iterator[Surfaces]:
    surfaces = Surfaces()
    yield surfaces
    surfaces.close()


@pytest.mark.parametrize("name", NAMES)
def test_no_input_causes_an_unhandled_error(surfaces: Surfaces, name: str) -> None:
    fuzz = surfaces.by_name()[name]
    for number in range(INPUTS):
        rng = Draws(f"{SEED}/{name}/{number}")
        try:
            fuzz(rng)
        except Exception:
            print(f"input {number} of seed {SEED}, in base64:\n{rng.described()}")
            raise


def test_all_surfaces_are_run(surfaces: Surfaces) -> None:
    assert set(NAMES) == set(surfaces.by_name())


def test_the_same_seed_draws_the_same_inputs() -> None:
    first, second = ([Draws("1/plain/7").mutated(b"a" * 50) for _ in range(3)] for _ in range(2))
    assert first == second
    assert Draws("1/plain/8").mutated(b"a" * 50) != first[0]


def test_conversations_get_past_authentication_and_handlers_answer(surfaces: Surfaces) -> None:
    for name in ("sasl_frames", "admin_requests"):
        for number in range(INPUTS):
            surfaces.by_name()[name](Draws(f"{SEED}/{name}/{number}"))
    assert surfaces.sasl.served > INPUTS // 4
    assert surfaces.admin.answered > INPUTS // 4
