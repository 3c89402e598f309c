"""Fixtures of the end-to-end tests: one cluster per session, unique names, clients, members that are always stopped."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from penstock_e2e.broker import cluster
from penstock_e2e.drivers import DRIVERS, library
from penstock_e2e.drivers.confluent import ConfluentAdmin
from penstock_e2e.member import Member, StartMember
from penstock_e2e.model import Admin, Driver, LibraryDriver, MakeTopic, MemberSpec, eventually


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster"), request.config.getoption("--brokers") or 1) as address:
        yield address


@pytest.fixture(scope="session")
def setup_admin(bootstrap: str) -> ConfluentAdmin:
    """The admin client for setup and checks that the client under test cannot do."""
    return ConfluentAdmin(bootstrap)


LONG_SESSION_MS = 60_000
"""Session timeout of members that do not crash: long enough to survive delays on a busy machine."""


@pytest.fixture(scope="session")
def crash_session_ms(setup_admin: ConfluentAdmin) -> int:
    """Session timeout of members that a test kills: short, but within the broker's limits."""
    least = setup_admin.broker_config(min(setup_admin.brokers())).get("group.min.session.timeout.ms")
    return max(4000, int(least or 0))


@pytest.fixture
def client(request: pytest.FixtureRequest, bootstrap: str) -> Driver:
    return DRIVERS[request.param](bootstrap)


@pytest.fixture
def library_client(client: Driver, bootstrap: str) -> LibraryDriver:
    return library(client.name, bootstrap)


@pytest.fixture
def admin(library_client: LibraryDriver) -> Iterator[Admin]:
    made = library_client.admin()
    yield made
    made.close()


@pytest.fixture
def fresh_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Unique names of topics and groups, which contain the name of the test."""
    test = "".join(c if c.isalnum() else "-" for c in request.node.originalname)[:80]
    return lambda: f"{test}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_topic(setup_admin: ConfluentAdmin, fresh_name: Callable[[], str]) -> Iterator[MakeTopic]:
    """Create topics and wait until they are served; they are deleted after the test."""
    made = []

    def make(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = fresh_name()
        setup_admin.create_topic(name, partitions, config)
        made.append(name)
        eventually(f"leaders of {name}", lambda: setup_admin.is_served(name, partitions))
        return name

    yield make
    for name in made:
        if setup_admin.partition_count(name) is not None:
            setup_admin.delete_topic(name)


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A topic of one partition."""
    return make_topic()


@pytest.fixture
def start_member(client: Driver, bootstrap: str) -> Iterator[StartMember]:
    """Start members of groups with the client under test; those still running after the test are killed."""
    members = []

    def start(group: str, topic: str, **changes: Any) -> Member:
        spec = MemberSpec(client.name, bootstrap, group, (topic,), LONG_SESSION_MS)
        member = Member(dataclasses.replace(spec, **changes))
        members.append(member)
        return member

    yield start
    for member in members:
        member.clean_up()
