"""A cut of the security fuzz in each test run; `make fuzz-security` runs a million inputs."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from penstock_fuzz_security.surfaces import Surfaces

SEED = 1
INPUTS = 100
"""Inputs of each surface."""
NAMES = (
    "plain", "scram", "oauthbearer", "key_set", "tls", "key_store", "distinguished_name", "mapping_rules", "jaas",
    "acl",
)  # fmt: skip


@pytest.fixture(scope="module")
def surfaces() -> Surfaces:
    return Surfaces()


@pytest.mark.parametrize("name", NAMES)
def test_no_input_causes_an_unhandled_error(surfaces: Surfaces, name: str) -> None:
    fuzz = surfaces.by_name()[name]
    for number in range(INPUTS):
        print(f"seed {SEED}, input {number}")
        fuzz(random.Random(f"{SEED}/{name}/{number}"))


def test_all_surfaces_are_run(surfaces: Surfaces) -> None:
    assert set(NAMES) == set(surfaces.by_name())
