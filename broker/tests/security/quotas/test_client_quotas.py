"""The usage of a broker's clients on virtual time: who shares a quota, changes, and bounded memory."""

from __future__ import annotations

import pytest

from penstock.security.quotas import client_quotas
from penstock.security.quotas.client_quotas import ClientQuotas, ClientUsage, QuotaWindows
from penstock.security.quotas.mutations import MutationQuotaExceeded
from penstock.security.quotas.resolution import QuotaKind
from penstock.security.quotas.usage import QuotaUsage
from penstock.state import keys
from penstock.state.security_records import ClientQuotaRecord
from penstock.state.view import ClusterView


class Quotas:
    """Client quotas with a view that the test changes and a clock that it sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.view = ClusterView()
        self.quotas = ClientQuotas(self.view, QuotaWindows(), lambda: self.now_s)

    def set(self, entity: dict[str, str | None], **quotas: float) -> None:
        key = keys.client_quota(entity)
        self.view.security.quotas.pop(key, None)
        if quotas:
            self.view.security.quotas[key] = ClientQuotaRecord(entity=entity, quotas=quotas)
        for listener in self.view.security_listeners:
            listener({key})

    def client(self, user: str = "ana", client_id: str = "c") -> ClientUsage:
        found = self.quotas.client(user, client_id.encode())
        assert found is not None
        return found

    def produce(self, amount: float, user: str = "ana", client_id: str = "c") -> float:
        """Charge an amount and return the throttle time."""
        usage = self.client(user, client_id).produce
        assert usage is not None
        usage.record(amount, self.now_s)
        return usage.throttle_s(self.now_s)


def test_without_quotas_no_client_is_measured() -> None:
    quotas = Quotas()
    assert not quotas.quotas.limits_clients
    assert quotas.quotas.client("ana", b"c") is None
    quotas.set({"ip": None}, connection_creation_rate=1)
    assert (quotas.quotas.limits_clients, quotas.quotas.limits_connections) == (False, True)


def test_a_quota_of_a_user_is_shared_by_its_clients_and_a_default_client_quota_is_not() -> None:
    quotas = Quotas()
    quotas.set({"user": "ana"}, producer_byte_rate=100)
    quotas.set({"client-id": None}, producer_byte_rate=100)
    assert quotas.produce(1500, "ana", "c1") == pytest.approx(5)
    assert quotas.produce(0, "ana", "c2") == pytest.approx(5)
    assert quotas.produce(1500, "bob", "c1") == pytest.approx(5)
    assert quotas.produce(0, "eva", "c1") == pytest.approx(5), "users without a quota share that of the client id"
    assert quotas.produce(0, "bob", "c2") == 0


def test_a_changed_quota_counts_at_once_for_what_was_used_before() -> None:
    quotas = Quotas()
    quotas.set({"user": None}, producer_byte_rate=100)
    assert quotas.produce(1500) > 0
    quotas.set({"user": None}, producer_byte_rate=1000)
    assert quotas.produce(0) == 0
    quotas.set({"user": "ana"}, producer_byte_rate=10)
    assert quotas.produce(0) > 0
    quotas.set({"user": "ana"})
    assert quotas.produce(0) == 0
    quotas.set({"user": None})
    assert not quotas.quotas.limits_clients


def test_a_throttle_time_is_bounded_and_that_of_handlers_is_a_window() -> None:
    quotas = Quotas()
    quotas.set({"user": None}, producer_byte_rate=1, request_percentage=1)
    assert quotas.produce(1_000_000) == 600
    usage = quotas.client().request
    assert usage is not None
    usage.record(5000, quotas.now_s)
    assert usage.throttle_s(quotas.now_s) == 1


def test_throttled_clients_are_counted_until_they_are_within_the_quota_again() -> None:
    quotas = Quotas()
    quotas.set({"client-id": None}, producer_byte_rate=100)
    for number in range(3):
        quotas.produce(1500, client_id=str(number))
    assert quotas.quotas.throttled_clients()[QuotaKind.PRODUCE] == 3
    quotas.now_s += 11
    assert quotas.quotas.throttled_clients()[QuotaKind.PRODUCE] == 0


def test_clients_without_usage_are_forgotten() -> None:
    quotas = Quotas()
    quotas.set({"client-id": None}, producer_byte_rate=100, controller_mutation_rate=1)
    for number in range(500):
        quotas.produce(1, client_id=str(number))
    quotas.now_s += 12
    quotas.produce(1, client_id="last")
    assert len(quotas.quotas._usages) == 2
    assert len(quotas.quotas._clients) == 1


def test_many_busy_clients_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "MAX_USAGES", 100)
    monkeypatch.setattr(client_quotas, "MAX_CLIENTS", 50)
    quotas = Quotas()
    quotas.set({"client-id": None}, producer_byte_rate=100)
    for number in range(1000):
        quotas.produce(1500, client_id=str(number))
        assert len(quotas.quotas._usages) <= 100
        assert len(quotas.quotas._clients) <= 50
    assert quotas.produce(0, client_id="999") > 0, "the newest are remembered"


def test_connections_beyond_the_rate_of_their_address_wait_longer_and_longer() -> None:
    quotas = Quotas()
    assert [quotas.quotas.connection_delay_s("10.0.0.1") for _ in range(13)] == [0] * 13
    quotas.set({"ip": None}, connection_creation_rate=1)
    quotas.set({"ip": "10.0.0.9"}, connection_creation_rate=1000)
    delays = [quotas.quotas.connection_delay_s("10.0.0.1") for _ in range(13)]
    assert delays == pytest.approx([0] * 10 + [1, 2, 3])
    assert [quotas.quotas.connection_delay_s("10.0.0.9") for _ in range(13)] == [0] * 13
    assert quotas.quotas.throttles[QuotaKind.CONNECTION] == 3
    assert quotas.quotas.throttled_s[QuotaKind.CONNECTION] == pytest.approx(6)


def bucket(quotas: Quotas) -> QuotaUsage:
    usage = quotas.client().mutation
    assert usage is not None
    return usage


def test_a_strict_request_is_refused_while_there_is_a_debt_and_counts_nothing() -> None:
    quotas = Quotas()
    quotas.set({"user": None}, controller_mutation_rate=1)
    first = quotas.quotas.mutation(quotas.client(), is_strict=True)
    assert first is not None
    assert first.throttle_ms == 0
    first.charge(20)
    assert first.throttle_ms == 0, "the change that takes the last tokens is allowed"
    second = quotas.quotas.mutation(quotas.client(), is_strict=True)
    assert second is not None
    with pytest.raises(MutationQuotaExceeded, match="controller_mutation_rate of 1 partitions"):
        second.charge(5)
    assert second.throttle_ms == 9000
    assert bucket(quotas).throttle_s(quotas.now_s) == 9
    quotas.now_s += 9
    second.charge(1)


def test_an_old_request_is_served_and_told_its_debt() -> None:
    quotas = Quotas()
    quotas.set({"user": None}, controller_mutation_rate=1)
    for expected_ms in (9000, 29_000):
        old = quotas.quotas.mutation(quotas.client(), is_strict=False)
        assert old is not None
        old.charge(20)
        assert old.throttle_ms == expected_ms
    assert quotas.quotas.mutation(ClientUsage(None, None, None, None), is_strict=True) is None
