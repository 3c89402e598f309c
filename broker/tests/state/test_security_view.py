"""The view has the store's credentials, ACLs and quotas; each change is reported by its key."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from watcher_kit import Followed

from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import encode
from penstock.state.security_records import AclRecord, ClientQuotaRecord, ScramCredentialRecord
from penstock.state.store import DeleteOp, PutOp

CREDENTIAL = ScramCredentialRecord(
    user="ana/é", mechanism="SCRAM-SHA-256", salt=b"salt", stored_key=b"1" * 32, server_key=b"2" * 32, iterations=4096
)
CREDENTIAL_KEY = keys.scram_credential("ana/é", "SCRAM-SHA-256")


def acl(name: str, permission: str = "ALLOW") -> AclRecord:
    return AclRecord(
        resource_type="TOPIC", pattern_type="LITERAL", name=name, principal="User:ana", host="*", operation="READ",
        permission=permission,
    )  # fmt: skip


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    store = EmbeddedStore(":memory:", history_events=50)
    made = Followed(store)
    await made.watcher.start()
    yield made
    await made.watcher.stop()
    await store.close()


async def test_records_appear_and_disappear_and_each_change_is_reported(followed: Followed) -> None:
    changes: list[set[str]] = []
    followed.view.subscribe_security(changes.append)
    quota = ClientQuotaRecord(entity={"user": "ana"}, quotas={"producer_byte_rate": 1e6})
    quota_key = keys.client_quota(quota.entity)
    await followed.write(PutOp(CREDENTIAL_KEY, encode(CREDENTIAL)), PutOp(quota_key, encode(quota)))
    await followed.write(PutOp(keys.acl(acl("a")), encode(acl("a"))))
    security = followed.view.security
    assert security.credential("ana/é", "SCRAM-SHA-256") == CREDENTIAL
    assert security.credential("ana/é", "SCRAM-SHA-512") is None
    assert security.acls == {keys.acl(acl("a")): acl("a")}
    assert security.quotas == {quota_key: quota}
    await followed.write(DeleteOp(keys.ACLS, prefix=True), DeleteOp(CREDENTIAL_KEY))
    assert not security.acls
    assert security.credential("ana/é", "SCRAM-SHA-256") is None
    assert changes == [{CREDENTIAL_KEY, quota_key}, {keys.acl(acl("a"))}, {keys.acl(acl("a")), CREDENTIAL_KEY}]


async def test_a_reload_reports_what_is_new_and_what_is_gone(followed: Followed) -> None:
    changes: list[set[str]] = []
    await followed.write(PutOp(keys.acl(acl("old")), encode(acl("old"))))
    await followed.watcher.stop()
    await followed.store.txn([], [DeleteOp(keys.acl(acl("old"))), PutOp(keys.acl(acl("new")), encode(acl("new")))])
    followed.view.subscribe_security(changes.append)
    await followed.watcher._load()
    assert changes == [{keys.acl(acl("old")), keys.acl(acl("new"))}]
    assert list(followed.view.security.acls.values()) == [acl("new")]


async def test_an_unreadable_record_keeps_its_last_readable_value_also_over_a_reload(followed: Followed) -> None:
    key = keys.acl(acl("secret", "DENY"))
    await followed.write(PutOp(key, encode(acl("secret", "DENY"))))
    for unreadable in (b"{", encode(acl("another", "DENY")), b'{"name":"secret"}'):
        await followed.write(PutOp(key, unreadable))
        assert followed.view.security.acls[key] == acl("secret", "DENY")
        await followed.watcher._load()
        assert followed.view.security.acls[key] == acl("secret", "DENY")
        assert key in followed.watcher.problems


@pytest.mark.parametrize(
    "value", [{"resource_type": "TOPICS"}, {"principal": "ana"}, {"permission": "MAYBE"}, {"operation": "ANY"}]
)
async def test_an_invalid_acl_has_no_effect(followed: Followed, value: dict[str, str]) -> None:
    fields = {field: getattr(acl("a"), field) for field in AclRecord.__struct_fields__} | value
    record = AclRecord(**fields)
    text = str(fields).replace("'", '"').encode()
    await followed.write(PutOp(keys.acl(record), text))
    assert not followed.view.security.acls
    assert keys.acl(record) in followed.watcher.problems


def test_a_secret_is_not_in_the_text_of_a_record() -> None:
    assert "111" not in repr(CREDENTIAL)
