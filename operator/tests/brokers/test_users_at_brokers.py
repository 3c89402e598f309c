"""Credentials, ACLs and quotas on a real broker: through the gateway, and of a User as its clients experience them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from brokers.secured_kit import OLD_SCRAM, SCRAM, SecuredBroker, produced, secured_broker
from users.user_kit import CLUSTER, NS, UserWorld

from penstock_operator.brokers.admin_connection import AdminConnection
from penstock_operator.brokers.gateway import Gateway
from penstock_operator.brokers.gateway_access import MAX_SINGLE_QUERIES
from penstock_operator.model.user import ROTATE_PASSWORD
from penstock_operator.ports.access import SECURITY_DISABLED, AclEntry
from penstock_operator.ports.brokers import BrokersError, TopicCreation

pytestmark = pytest.mark.integration

READ = AclEntry("TOPIC", "LITERAL", "orders", "READ")
DENY = AclEntry("GROUP", "PREFIXED", "bill", "DESCRIBE_CONFIGS", "DENY", "10.0.0.0/8")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as made:
        yield made


@pytest.fixture
async def access(secured: SecuredBroker) -> AsyncIterator[Gateway]:
    made = Gateway(AdminConnection(secured.plain))
    yield made
    await made.close()


# The gateway


async def test_credentials_are_set_listed_and_deleted(access: Gateway, name: str) -> None:
    await access.set_credential(name, SCRAM, "one", 4_097)
    await access.set_credential(name, OLD_SCRAM, "one", 8_191)
    await access.set_credential(name, SCRAM, "two", 5_000)
    assert await access.credentials([name, "missing"]) == {name: {SCRAM: 5_000, OLD_SCRAM: 8_191}}
    for _ in range(2):
        await access.delete_credential(name, SCRAM)
    assert await access.credentials([name]) == {name: {OLD_SCRAM: 8_191}}


@pytest.mark.parametrize("others", [0, MAX_SINGLE_QUERIES])
async def test_acls_of_a_principal_are_created_listed_and_deleted(access: Gateway, name: str, others: int) -> None:
    principal = f"User:{name}"
    asked = [principal, *(f"User:{name}-{i}" for i in range(others))]
    await access.create_acls("User:another", [READ])
    for _ in range(2):
        await access.create_acls(principal, [READ, DENY])
    assert await access.acls(asked) == {principal: frozenset({READ, DENY})}
    for _ in range(2):
        await access.delete_acls(principal, [READ])
    assert await access.acls(asked) == {principal: frozenset({DENY})}
    assert await access.acls(["User:another"]) == {"User:another": frozenset({READ})}


@pytest.mark.parametrize("others", [0, MAX_SINGLE_QUERIES])
async def test_quotas_of_a_user_are_set_listed_and_removed(access: Gateway, name: str, others: int) -> None:
    asked = [name, *(f"{name}-{i}" for i in range(others))]
    await access.change_quotas(name, {"producer_byte_rate": 1000.0, "request_percentage": 50.0})
    assert await access.quotas(asked) == {name: {"producer_byte_rate": 1000.0, "request_percentage": 50.0}}
    await access.change_quotas(name, {"producer_byte_rate": None, "request_percentage": None})
    assert await access.quotas(asked) == {}


async def test_an_error_names_the_call_and_the_cause(access: Gateway, name: str) -> None:
    with pytest.raises(BrokersError, match="setting a credential") as refused:
        await access.set_credential(name, SCRAM, "one", 100)
    assert (refused.value.code, refused.value.is_passing) == ("UNACCEPTABLE_CREDENTIAL", False)
    assert "one" not in str(refused.value).split()


async def test_brokers_without_an_authorizer_say_so(gateway: Gateway) -> None:
    with pytest.raises(BrokersError) as refused:
        await gateway.acls(["User:ana"])
    assert refused.value.code == SECURITY_DISABLED


# A User, with the real broker behind the controller


async def test_a_user_has_what_its_object_says_from_its_creation_to_its_deletion(
    secured: SecuredBroker, access: Gateway, name: str
) -> None:
    world = UserWorld()
    world.gateways[NS, CLUSTER] = access
    await access.create_topics([TopicCreation(topic, 1, 1, {}) for topic in (name, f"{name}-other")])

    async def outcome(topic: str, properties: str) -> str:
        return await asyncio.to_thread(produced, properties, secured.sasl, topic)

    world.apply(name, acls=[{"topic": name, "operations": ["Write"]}], quotas={"producerByteRate": 1_000_000})
    await world.run()
    assert world.condition(name=name) == ("True", "Ready")
    first = world.secret(name)["client.properties"]
    assert await outcome(name, first) == "ok"
    assert await outcome(f"{name}-other", first) == "TOPIC_AUTHORIZATION_FAILED"

    world.apply(name, acls=[{"topic": name, "operations": ["Read"]}], annotations={ROTATE_PASSWORD: "now"})
    await world.run()
    second = world.secret(name)["client.properties"]
    assert await outcome(name, first) == "_AUTHENTICATION"
    assert await outcome(name, second) == "TOPIC_AUTHORIZATION_FAILED"
    assert await access.quotas([name]) == {}

    world.delete(name)
    await world.run()
    assert await outcome(name, second) == "_AUTHENTICATION"
    assert await access.acls([f"User:{name}"]) == {}
    assert world.errors == []
