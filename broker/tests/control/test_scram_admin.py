"""Changes of SCRAM credentials, with Kafka's error codes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from penstock.config.broker import BrokerConfig
from penstock.control.membership import ensure_cluster
from penstock.control.results import AdminError
from penstock.control.scram_admin import MAX_ALTERATIONS, CredentialDeletion, CredentialUpsertion, ScramAdmin
from penstock.security.scram_keys import server_key, stored_key
from penstock.state.embedded import EmbeddedStore
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode

SHA_256, SHA_512, SHA_1024 = 1, 2, 3


def upsertion(
    user: str = "ana", mechanism: int = SHA_256, iterations: int = 4096, **changes: bytes
) -> CredentialUpsertion:
    size = 64 if mechanism == SHA_512 else 32
    return CredentialUpsertion(
        user, mechanism, iterations, changes.get("salt", b"salt"), changes.get("salted", b"k" * size)
    )


class Bench:
    def __init__(self) -> None:
        self.store, self.view = EmbeddedStore(":memory:"), ClusterView()
        self.watcher = Watcher(self.store, self.view, BrokerConfig())
        self.admin = ScramAdmin(self.store, self.view, self.watcher)

    async def alter(self, *alterations: CredentialDeletion | CredentialUpsertion) -> dict[str, ErrorCode | None]:
        results = await self.admin.alter(alterations)
        return {user: None if error is None else error.error for user, error in results.items()}

    def described(self, *users: str) -> dict[str, object]:
        found: dict[str, object] = {}
        for user, records in self.admin.describe(users or None).items():
            if isinstance(records, AdminError):
                found[user] = records.error
            else:
                found[user] = [(each.mechanism, each.iterations) for each in records]
        return found


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await ensure_cluster(made.store, uuid4)
    await made.watcher.start()
    yield made
    await made.watcher.stop()
    await made.store.close()


async def test_a_credential_is_in_the_view_when_the_request_is_answered(bench: Bench) -> None:
    assert await bench.alter(upsertion(iterations=5000), upsertion(mechanism=SHA_512), upsertion("bob")) == {
        "ana": None,
        "bob": None,
    }
    assert bench.described() == {
        "ana": [("SCRAM-SHA-256", 5000), ("SCRAM-SHA-512", 4096)],
        "bob": [("SCRAM-SHA-256", 4096)],
    }
    record = bench.view.security.credential("ana", "SCRAM-SHA-256")
    assert record is not None
    salted = b"k" * 32
    assert record.salt == b"salt"
    assert record.stored_key == stored_key("SCRAM-SHA-256", salted)
    assert record.server_key == server_key("SCRAM-SHA-256", salted)


async def test_credentials_are_replaced_and_deleted(bench: Bench) -> None:
    await bench.alter(upsertion(), upsertion(mechanism=SHA_512))
    assert await bench.alter(upsertion(iterations=16_384), CredentialDeletion("ana", SHA_512)) == {"ana": None}
    assert bench.described() == {"ana": [("SCRAM-SHA-256", 16_384)]}
    assert await bench.alter(CredentialDeletion("ana", SHA_256)) == {"ana": None}
    assert bench.described() == {}


@pytest.mark.parametrize(
    ("alterations", "error"),
    [
        ([upsertion("")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([CredentialDeletion("", SHA_256)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion("x" * 256)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(iterations=16_385)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(iterations=-1)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(salt=b"")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(salt=b"s" * 257)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(salted=b"short")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(mechanism=0)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([upsertion(mechanism=SHA_1024)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([CredentialDeletion("ana", 7)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([CredentialDeletion("ana", SHA_512)], ErrorCode.RESOURCE_NOT_FOUND),
        ([upsertion(), upsertion()], ErrorCode.DUPLICATE_RESOURCE),
        ([CredentialDeletion("ana", SHA_256), upsertion()], ErrorCode.DUPLICATE_RESOURCE),
        ([upsertion(mechanism=SHA_512), CredentialDeletion("ana", SHA_1024)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([upsertion("ana")] * (MAX_ALTERATIONS + 1), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_an_invalid_change_is_refused_and_leaves_all_of_the_users_credentials(
    bench: Bench, alterations: list[CredentialDeletion | CredentialUpsertion], error: ErrorCode
) -> None:
    await bench.alter(upsertion(iterations=9000))
    assert set((await bench.alter(*alterations)).values()) == {error}
    assert bench.described() == {"ana": [("SCRAM-SHA-256", 9000)]}


async def test_an_error_of_one_user_does_not_concern_another(bench: Bench) -> None:
    assert await bench.alter(upsertion("bob"), CredentialDeletion("eve", SHA_256)) == {
        "bob": None,
        "eve": ErrorCode.RESOURCE_NOT_FOUND,
    }
    assert bench.described("bob", "eve", "ana", "ana") == {
        "bob": [("SCRAM-SHA-256", 4096)],
        "eve": ErrorCode.RESOURCE_NOT_FOUND,
        "ana": ErrorCode.DUPLICATE_RESOURCE,
    }


def test_salt_and_password_are_in_no_text() -> None:
    shown = repr(upsertion(salt=b"the-salt"))
    assert "the-salt" not in shown
    assert "kkk" not in shown
