"""Connections and links of these tests, and helpers for reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_processes import Cluster, running
from penstock_spark_kit.broker import Broker

from penstock_spark.link import Link
from penstock_spark.model.connection import ConnectionOptions

LinkTo = Callable[..., Link]


@pytest.fixture
def link_to() -> Iterator[LinkTo]:
    """Return links of the test by address; close them at its end."""
    made: list[Link] = []

    def to(bootstrap: str, *, give_up_ms: int = 60_000, **more: object) -> Link:
        link = Link.to(ConnectionOptions(bootstrap, give_up_ms=give_up_ms, **more))  # type: ignore[arg-type]
        made.append(link)
        return link

    yield to
    for link in made:
        link.close()


@pytest.fixture
def link(link_to: LinkTo, penstock: Broker) -> Link:
    return link_to(penstock.bootstrap)


@pytest.fixture
def three_brokers(tmp_path: Path) -> Iterator[Cluster]:
    """Run a cluster of three broker processes and etcd."""
    with running(Cluster(tmp_path)) as made:
        yield made
