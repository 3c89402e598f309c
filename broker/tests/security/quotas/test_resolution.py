"""Which quota counts for a client, compared with a model that tries Kafka's levels one after the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.security.quotas.resolution import CLIENT_KINDS, QuotaKind, quota_of_address, quotas_of_client
from penstock.state import keys
from penstock.state.security_records import ClientQuotaRecord

Entity = dict[str, str | None]


def stored(*entities: tuple[Entity, dict[str, float]]) -> dict[str, ClientQuotaRecord]:
    return {keys.client_quota(entity): ClientQuotaRecord(entity=entity, quotas=quotas) for entity, quotas in entities}


NAMES = st.sampled_from(["ana", "bob", "a/b", "é", "default", None])
ENTITIES = st.one_of(
    st.builds(lambda user: {"user": user}, NAMES),
    st.builds(lambda client: {"client-id": client}, NAMES),
    st.builds(lambda user, client: {"user": user, "client-id": client}, NAMES, NAMES),
)
QUOTAS = st.dictionaries(st.sampled_from([kind.value for kind in CLIENT_KINDS]), st.floats(1, 100), min_size=1)
PRECEDENCE = [
    (("user", "name"), ("client-id", "name")),
    (("user", "name"), ("client-id", "default")),
    (("user", "name"),),
    (("user", "default"), ("client-id", "name")),
    (("user", "default"), ("client-id", "default")),
    (("user", "default"),),
    (("client-id", "name"),),
    (("client-id", "default"),),
]


@given(st.lists(st.tuples(ENTITIES, QUOTAS)), st.sampled_from(["ana", "a/b", "x"]), st.sampled_from(["bob", "é", ""]))
def test_the_first_level_that_has_a_quota_gives_it(
    entities: list[tuple[Entity, dict[str, float]]], user: str, client_id: str
) -> None:
    records, names = stored(*entities), {"user": user, "client-id": client_id}
    found = quotas_of_client(records, user, client_id)
    for kind in CLIENT_KINDS:
        expected = None
        for level in PRECEDENCE:
            entity = {part: names[part] if how == "name" else None for part, how in level}
            record = next((r for r in records.values() if r.entity == entity), None)
            if record is not None and kind.value in record.quotas:
                shares = user if "user" in entity else "", client_id if "client-id" in entity else ""
                expected = (record.quotas[kind.value], shares)
                break
        assert found.get(kind) == expected


def test_a_user_named_default_is_not_the_default_user() -> None:
    records = stored(({"user": "default"}, {"producer_byte_rate": 5.0}))
    assert quotas_of_client(records, "ana", "c") == {}
    assert quotas_of_client(records, "default", "c")[QuotaKind.PRODUCE].quota == 5


def test_an_address_has_its_own_quota_or_the_default() -> None:
    records = stored(
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 3.0}), ({"ip": None}, {"connection_creation_rate": 9.0})
    )
    assert quota_of_address(records, "10.0.0.1") == 3
    assert quota_of_address(records, "10.0.0.2") == 9
    assert quota_of_address({}, "10.0.0.2") is None
