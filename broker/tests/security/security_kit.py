"""Credentials without a store, and the messages of a SCRAM client."""

from __future__ import annotations

from collections.abc import Callable

from penstock.security.credentials import ScramCredentials
from penstock.security.scram_keys import credential_of, salted_password
from penstock.state import keys
from penstock.state.security_records import ScramCredentialRecord
from penstock.state.view import ClusterView

SECRET = b"s" * 32


class Incomparable(bytes):
    """A key that only `hmac.compare_digest` compares: `==` would end at the first difference."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a key is compared by ==")

    def __ne__(self, other: object) -> bool:
        raise AssertionError("a key is compared by !=")

    __hash__ = bytes.__hash__


def credential(
    user: str, password: str, mechanism: str = "SCRAM-SHA-256", salt: bytes = b"salt" * 6, iterations: int = 4096
) -> ScramCredentialRecord:
    salted = salted_password(mechanism, password.encode(), salt, iterations)
    return credential_of(user, mechanism, salt, iterations, salted)


async def run_here(work: Callable[[], bytes]) -> bytes:
    """Stand for a thread."""
    return work()


class Users:
    """The credentials of a cluster's view, which the test changes."""

    def __init__(self, *records: ScramCredentialRecord) -> None:
        self.view = ClusterView()
        self.credentials = ScramCredentials(self.view, SECRET)
        for record in records:
            self.put(record)

    def put(self, record: ScramCredentialRecord) -> None:
        self._change(keys.scram_credential(record.user, record.mechanism), record)

    def delete(self, user: str, mechanism: str = "SCRAM-SHA-256") -> None:
        self._change(keys.scram_credential(user, mechanism), None)

    def _change(self, key: str, record: ScramCredentialRecord | None) -> None:
        if record is None:
            del self.view.security.credentials[key]
        else:
            self.view.security.credentials[key] = record
        for listener in self.view.security_listeners:
            listener({key})
