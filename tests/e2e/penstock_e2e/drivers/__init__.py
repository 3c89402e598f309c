"""Third-party clients, one module each, and the selection of clients for a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock_e2e.drivers.aio import Aio
from penstock_e2e.drivers.confluent import Confluent
from penstock_e2e.drivers.kafka_python import KafkaPython
from penstock_e2e.drivers.kcat import Kcat
from penstock_e2e.model import Driver, LibraryDriver

DRIVERS: dict[str, Callable[[str], Driver]] = {driver.name: driver for driver in (Confluent, KafkaPython, Aio, Kcat)}


def library(name: str, bootstrap: str) -> LibraryDriver:
    driver = DRIVERS[name](bootstrap)
    assert "library" in driver.features, f"{name} is no Python library"
    return driver  # type: ignore[return-value]


def names(*features: str) -> list[str]:
    """Return the clients that have all these features."""
    found = [name for name, driver in DRIVERS.items() if driver.features >= set(features)]  # type: ignore[attr-defined]
    assert found, f"no client has {features}"
    return found


def clients(*features: str) -> pytest.MarkDecorator:
    """Parametrise a test over the clients that have all these features; the fixture `client` is the client."""
    return pytest.mark.parametrize("client", names(*features), indirect=True)
