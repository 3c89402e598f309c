"""Credentials, ACLs and quotas of the store by key. Part of `ClusterView`; written by `tables`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.state import keys
from penstock.state.records import BadRecord, StoredRecord, decode
from penstock.state.security_records import AclRecord, ClientQuotaRecord, ScramCredentialRecord
from penstock.state.store import StoreEntry


@dataclass(slots=True)
class SecurityView:
    """The records by their keys. `ClusterView.subscribe_security` reports the changed keys."""

    credentials: dict[str, ScramCredentialRecord] = field(default_factory=dict)
    """By `keys.scram_credential`."""
    acls: dict[str, AclRecord] = field(default_factory=dict)
    """By `keys.acl`."""
    quotas: dict[str, ClientQuotaRecord] = field(default_factory=dict)
    """By `keys.client_quota`."""

    def credential(self, user: str, mechanism: str) -> ScramCredentialRecord | None:
        """Return a user's credential for a SCRAM mechanism; None if there is none."""
        return self.credentials.get(keys.scram_credential(user, mechanism))

    def put(self, entry: StoreEntry) -> bool:
        """Apply a record; return False if the key is of another kind. Raises `BadRecord`."""
        key = entry.key
        if key.startswith(keys.ACLS):
            acl = decode(AclRecord, key, entry.value)
            check_key(key, keys.acl(acl), acl)
            self.acls[key] = acl
        elif key.startswith(keys.SCRAM_CREDENTIALS):
            credential = decode(ScramCredentialRecord, key, entry.value)
            check_key(key, keys.scram_credential(credential.user, credential.mechanism), credential)
            self.credentials[key] = credential
        elif key.startswith(keys.CLIENT_QUOTAS):
            quota = decode(ClientQuotaRecord, key, entry.value)
            check_key(key, keys.client_quota(quota.entity), quota)
            self.quotas[key] = quota
        else:
            return False
        return True

    def delete(self, key: str) -> bool:
        """Remove a record; return whether there was one."""
        return any(table.pop(key, None) is not None for table in (self.credentials, self.acls, self.quotas))

    def keys(self) -> Iterator[str]:
        """Yield all keys."""
        for table in (self.credentials, self.acls, self.quotas):
            yield from table

    def keep(self, key: str, before: SecurityView) -> None:
        """Take the record of `key` over from `before`, if it has one: the store's value is unreadable."""
        if key in before.credentials:
            self.credentials[key] = before.credentials[key]
        elif key in before.acls:
            self.acls[key] = before.acls[key]
        elif key in before.quotas:
            self.quotas[key] = before.quotas[key]


def check_key(key: str, expected: str, record: StoredRecord) -> None:
    """Raise `BadRecord` if a record is stored under another record's key."""
    if key != expected:
        raise BadRecord(f'the value of "{key}" is a {type(record).__name__} that belongs to "{expected}"')
