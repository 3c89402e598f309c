"""DescribeClientQuotas and AlterClientQuotas: what they accept, store and find."""

from __future__ import annotations

import math
from typing import Any

import pytest

from penstock.control import client_quotas
from penstock.state import keys
from penstock.state.store import PutOp
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_client_quotas as alter
from penstock.wire.messages import describe_client_quotas as describe

VERSIONS = [0, 1]
Entity = dict[str, str | None]
Filter = tuple[str, int, str | None]
RATE = {"producer_byte_rate": 1024.0}


def entry(entity: Entity | list[tuple[str, str | None]], quotas: Any) -> alter.EntryData:
    parts = entity.items() if isinstance(entity, dict) else entity
    pairs = quotas.items() if isinstance(quotas, dict) else quotas
    ops = [alter.OpData(key, 0.0 if value is None else value, value is None) for key, value in pairs]
    return alter.EntryData([alter.EntityData(*part) for part in parts], ops)


async def altered(
    broker: Any, *entries: alter.EntryData, version: int = 1, validate_only: bool = False
) -> list[alter.AlterClientQuotasResponseEntryData]:
    request = alter.AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    response = await broker.ask(request, version)
    by_type = [sorted(each.entity, key=lambda part: part.entity_type) for each in entries]
    assert [each.entity for each in response.entries] == by_type
    found: list[alter.AlterClientQuotasResponseEntryData] = response.entries
    return found


async def refusal(broker: Any, entity: Any, quotas: Any) -> str:
    (result,) = await altered(broker, entry(entity, quotas))
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert result.error_message is not None
    assert broker.view.security.quotas == {}
    return result.error_message


async def described(broker: Any, *filters: tuple[str, int, str | None], strict: bool = False, version: int = 1) -> Any:
    components = [describe.ComponentData(*each) for each in filters]
    return await broker.ask(describe.DescribeClientQuotasRequest(components=components, strict=strict), version)


async def names(broker: Any, *filters: Filter, strict: bool = False) -> list[list[str]]:
    response = await described(broker, *filters, strict=strict)
    assert response.error_code == 0, response.error_message
    return sorted(sorted(f"{e.entity_type}={e.entity_name}" for e in found.entity) for found in response.entries)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_quota_is_visible_once_it_is_acknowledged_and_gone_once_it_is_removed(
    broker: Any, version: int
) -> None:
    (result,) = await altered(broker, entry({"user": "ana"}, {**RATE, "request_percentage": 12.5}), version=version)
    assert result.error_code == 0
    response = await described(broker, ("user", 0, "ana"), version=version)
    ((found,),) = [response.entries]
    assert [(e.entity_type, e.entity_name) for e in found.entity] == [("user", "ana")]
    assert {value.key: value.value for value in found.values} == {
        "producer_byte_rate": 1024.0,
        "request_percentage": 12.5,
    }
    await altered(
        broker, entry({"user": "ana"}, {"producer_byte_rate": None, "consumer_byte_rate": 5}), version=version
    )
    (record,) = broker.view.security.quotas.values()
    assert record.quotas == {"request_percentage": 12.5, "consumer_byte_rate": 5}, "others of the entity are kept"
    await altered(broker, entry({"user": "ana"}, {"request_percentage": None, "consumer_byte_rate": None}))
    assert broker.view.security.quotas == {}
    assert (await broker.store.range(keys.CLIENT_QUOTAS)).entries == [], "an entity without quotas leaves no record"


async def test_a_client_id_precedes_its_user_in_responses_in_whatever_order_the_request_names_them(broker: Any) -> None:
    both = {"user": "ana", "client-id": "app"}
    (result,) = await altered(broker, entry(both, RATE))
    ((found,),) = [(await described(broker)).entries]
    for parts in (result.entity, found.entity):
        assert [(part.entity_type, part.entity_name) for part in parts] == [("client-id", "app"), ("user", "ana")]


async def test_quotas_have_the_order_of_kafkas_responses(broker: Any) -> None:
    changes = [
        ("producer_byte_rate", 1.0),
        ("controller_mutation_rate", 2.0),
        ("request_percentage", 3.0),
        ("consumer_byte_rate", 4.0),
    ]
    await altered(broker, entry({"user": "ana"}, changes))
    ((found,),) = [(await described(broker)).entries]
    assert [(value.key, value.value) for value in found.values] == [changes[3], changes[2], changes[0], changes[1]]


async def test_entities_are_changed_independently_of_each_other(broker: Any) -> None:
    results = await altered(
        broker, entry({"user": "ana"}, RATE), entry({"user": ""}, RATE), entry({"ip": None}, RATE), entry({}, RATE)
    )
    invalid = ErrorCode.INVALID_REQUEST
    assert [result.error_code for result in results] == [0, invalid, invalid, invalid]
    assert await names(broker) == [["user=ana"]]


async def test_an_entity_that_is_named_twice_is_refused_in_both_places(broker: Any) -> None:
    both = {"user": "ana", "client-id": None}
    reordered: Entity = {"client-id": None, "user": "ana"}
    results = await altered(broker, entry(both, RATE), entry(reordered, RATE), entry({"user": "bob"}, RATE))
    assert [bool(result.error_code) for result in results] == [True, True, False]
    assert "more than once" in str(results[0].error_message)


async def test_validate_only_checks_and_writes_nothing(broker: Any) -> None:
    results = await altered(broker, entry({"user": "ana"}, RATE), entry({"user": ""}, RATE), validate_only=True)
    assert [result.error_code for result in results] == [0, ErrorCode.INVALID_REQUEST]
    assert broker.view.security.quotas == {}


@pytest.mark.parametrize(
    ("entity", "quotas", "part"),
    [
        ({"group": "g"}, RATE, 'unknown entity type "group"'),
        ([("user", "a"), ("user", "b")], RATE, 'more than one "user"'),
        ({"user": "a", "ip": "10.0.0.1"}, RATE, '"ip" cannot have a user'),
        ({"user": "é" * 513}, RATE, "exceeds 1024 bytes"),
        ({"ip": "example.org"}, {"connection_creation_rate": 1}, '"example.org" is not an IP address'),
        ({"ip": "10.0.0.1"}, RATE, "use connection_creation_rate"),
        ({"user": "a"}, {"connection_creation_rate": 1}, "use producer_byte_rate, consumer_byte_rate"),
        ({"user": "a"}, {"producer_byte_rat": 1}, 'unknown quota "producer_byte_rat"'),
        ({"user": "a"}, [*RATE.items(), *RATE.items()], "more than once"),
        ({"user": "a"}, {"producer_byte_rate": 0}, '"0"; use a number greater than 0'),
        ({"user": "a"}, {"request_percentage": -1}, '"-1"; use a number greater than 0'),
        ({"user": "a"}, {"request_percentage": math.nan}, '"nan"; use a number greater than 0'),
        ({"user": "a"}, {"consumer_byte_rate": math.inf}, '"inf"; use a number greater than 0'),
        ({"user": "a"}, {"producer_byte_rate": 1.5}, '"1.5"; use a whole number'),
        ({"user": "a"}, {"consumer_byte_rate": 1e19}, "up to 9223372036854775807"),
        ({"ip": None}, {"connection_creation_rate": 1 << 31}, "up to 2147483647"),
    ],
)
async def test_an_invalid_change_is_refused_with_the_fix(broker: Any, entity: Any, quotas: Any, part: str) -> None:
    assert part in await refusal(broker, entity, quotas)


async def test_any_quota_can_be_removed_and_the_largest_can_be_set(broker: Any) -> None:
    (result,) = await altered(broker, entry({"user": "ana"}, {"unknown": None, "connection_creation_rate": None}))
    assert (result.error_code, broker.view.security.quotas) == (0, {})
    (result,) = await altered(broker, entry({"ip": None}, {"connection_creation_rate": (1 << 31) - 1}))
    assert result.error_code == 0


async def test_an_address_is_stored_as_the_server_writes_it(broker: Any) -> None:
    await altered(broker, entry({"ip": "2001:DB8::0:1"}, {"connection_creation_rate": 7}))
    assert await names(broker, ("ip", 0, "2001:db8::1")) == [["ip=2001:db8::1"]]


async def test_the_number_of_entities_is_bounded(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "MAX_QUOTA_ENTITIES", 1)
    await altered(broker, entry({"user": "ana"}, RATE))
    (result,) = await altered(broker, entry({"user": "bob"}, RATE))
    assert result.error_code == ErrorCode.POLICY_VIOLATION
    (result,) = await altered(broker, entry({"user": "ana"}, {"producer_byte_rate": 5}))
    assert result.error_code == 0, "present entities can be changed"


async def test_an_unreadable_record_can_be_replaced(broker: Any) -> None:
    await broker.store.txn([], [PutOp(keys.client_quota({"user": "ana"}), b"{")])
    (result,) = await altered(broker, entry({"user": "ana"}, RATE))
    assert result.error_code == 0
    assert await names(broker) == [["user=ana"]]


async def test_filters_select_by_name_default_and_any_and_strict_ones_exclude_further_types(broker: Any) -> None:
    entities: list[Entity] = [
        {"user": "ana"}, {"user": None}, {"client-id": "c"}, {"user": "ana", "client-id": "c"},
        {"user": "ana", "client-id": None},
    ]  # fmt: skip
    await altered(
        broker, *[entry(each, RATE) for each in entities], entry({"ip": None}, {"connection_creation_rate": 2})
    )
    assert len(await names(broker)) == 6
    assert await names(broker, strict=True) == []
    ana, ana_c, ana_all = ["user=ana"], ["client-id=c", "user=ana"], ["client-id=None", "user=ana"]
    assert await names(broker, ("user", 0, "ana")) == [ana_all, ana_c, ana]
    assert await names(broker, ("user", 0, "ana"), strict=True) == [ana]
    assert await names(broker, ("user", 1, None)) == [["user=None"]]
    assert await names(broker, ("user", 2, None), strict=True) == [["user=None"], ana]
    assert await names(broker, ("user", 2, None), ("client-id", 2, None)) == [ana_all, ana_c]
    assert await names(broker, ("user", 0, "ana"), ("client-id", 1, None), strict=True) == [ana_all]
    assert await names(broker, ("ip", 1, None)) == [["ip=None"]]
    assert await names(broker, ("ip", 0, "10.0.0.1")) == []


@pytest.mark.parametrize(
    ("filters", "error", "part"),
    [
        ([("", 2, None)], ErrorCode.INVALID_REQUEST, "no entity type"),
        ([("group", 2, None)], ErrorCode.UNSUPPORTED_VERSION, 'unknown entity type "group"'),
        ([("user", 2, None), ("user", 1, None)], ErrorCode.INVALID_REQUEST, "more than once"),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST, 'unknown match type "3"'),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST, "a name is required"),
        ([("user", 2, "ana")], ErrorCode.INVALID_REQUEST, "a name is required"),
        ([("ip", 2, None), ("user", 2, None)], ErrorCode.INVALID_REQUEST, "separate requests"),
    ],
)
async def test_an_invalid_filter_is_refused(broker: Any, filters: Any, error: ErrorCode, part: str) -> None:
    response = await described(broker, *filters)
    assert (response.error_code, response.entries) == (error, None)
    assert part in response.error_message


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_unexpected_failure_is_reported_for_each_entity(broker: Any, version: int) -> None:
    request = alter.AlterClientQuotasRequest(entries=[entry({"user": "ana"}, RATE)])
    (result,) = broker.ask.failed(request, version, -1).entries
    assert (result.error_code, result.entity[0].entity_name) == (-1, "ana")
    assert broker.ask.failed(describe.DescribeClientQuotasRequest(), version, -1).error_code == -1
