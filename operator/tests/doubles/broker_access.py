"""Credentials, ACLs and quotas of the broker double."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from doubles.broker_failures import Failures, refused

from penstock_operator.ports.access import SECURITY_DISABLED, AclEntry

MIN_ITERATIONS, MAX_ITERATIONS = 4_096, 16_384


class Access(Failures):
    """Access of the double. Tests read and change `passwords`, `acls_by_principal` and `quotas_by_user`."""

    calls: Counter[str]
    items: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.passwords: dict[str, dict[str, tuple[str, int]]] = {}
        """Password and iterations by user and mechanism."""
        self.acls_by_principal: dict[str, set[AclEntry]] = {}
        self.quotas_by_user: dict[str, dict[str, float]] = {}
        self.has_authorizer = True
        self.changes: list[str] = []
        """Names of the changing calls, in order."""

    def _called(self, call: str, items: int = 0) -> None:
        raise NotImplementedError  # defined by `InMemoryBrokers`

    def logs_in(self, user: str, mechanism: str, password: str) -> bool:
        """Return whether a client could authenticate."""
        return self.passwords.get(user, {}).get(mechanism, ("", 0))[0] == password

    async def credentials(self, users: Collection[str]) -> dict[str, dict[str, int]]:
        self._called("credentials", len(users))
        found = {user: self.passwords[user] for user in users if self.passwords.get(user)}
        return {user: {mechanism: known[1] for mechanism, known in of.items()} for user, of in found.items()}

    async def set_credential(self, user: str, mechanism: str, password: str, iterations: int) -> None:
        self._change_access("set_credential", user, self._set_credential, user, mechanism, password, iterations)

    def _set_credential(self, user: str, mechanism: str, password: str, iterations: int) -> None:
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise refused("UNACCEPTABLE_CREDENTIAL", f"{iterations} iterations")
        self.passwords.setdefault(user, {})[mechanism] = (password, iterations)

    async def delete_credential(self, user: str, mechanism: str) -> None:
        self._change_access("delete_credential", user, lambda: self.passwords.get(user, {}).pop(mechanism, None))

    async def acls(self, principals: Collection[str]) -> dict[str, frozenset[AclEntry]]:
        self._called("acls", len(principals))
        self._require_authorizer()
        return {p: frozenset(self.acls_by_principal[p]) for p in principals if self.acls_by_principal.get(p)}

    async def create_acls(self, principal: str, acls: Collection[AclEntry]) -> None:
        self._require_authorizer()
        self._change_access("create_acls", principal, self.acls_by_principal.setdefault(principal, set()).update, acls)

    async def delete_acls(self, principal: str, acls: Collection[AclEntry]) -> None:
        self._require_authorizer()
        there = self.acls_by_principal.setdefault(principal, set())
        self._change_access("delete_acls", principal, there.difference_update, acls)

    async def quotas(self, users: Collection[str]) -> dict[str, dict[str, float]]:
        self._called("quotas", len(users))
        return {user: dict(self.quotas_by_user[user]) for user in users if self.quotas_by_user.get(user)}

    async def change_quotas(self, user: str, changes: Mapping[str, float | None]) -> None:
        self._change_access("change_quotas", user, self._change_quotas, user, changes)

    def _change_quotas(self, user: str, changes: Mapping[str, float | None]) -> None:
        quotas = self.quotas_by_user.setdefault(user, {})
        for name, value in changes.items():
            if value is None:
                quotas.pop(name, None)
            else:
                quotas[name] = value

    def _require_authorizer(self) -> None:
        if not self.has_authorizer:
            raise refused(SECURITY_DISABLED, "the brokers have no authorizer")

    def _change_access(self, call: str, name: str, do: Callable[..., Any], *arguments: Any) -> None:
        self._called(call, 1)
        error = self._outcome(call, name, do, *arguments)
        if error is not None:
            raise error
        self.changes.append(call)
