"""Decides by the ACLs in the cluster view, with the semantics of Kafka's StandardAuthorizer (KIP-11, KIP-290, KIP-801).

Created by `node`; request handlers and the dispatcher call it on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from penstock.security.acl_index import AclIndex, AclsByKey, IndexedAcl, ResourceAcls
from penstock.security.principal import USER, Principal
from penstock.state import keys
from penstock.state.view import ClusterView
from penstock.wire.acl import WILDCARD, AclOperation, PatternType, ResourceType

MAX_CACHED_DECISIONS = 32_768
MAX_CACHED_NAME_CHARS = 255
"""Length of the names whose decisions are cached: clients choose the names."""
EVERYONE = f"{USER}:{WILDCARD}"
"""The principal of ACLs that apply to all users."""
NO_ACLS: AclsByKey = {}
PROBE_NAME = "hardcode"
"""The name with which Kafka asks whether a principal may do something on resources without ACLs of their own."""

Decision = tuple[Principal, str, AclOperation, ResourceType, str | None]
"""(principal, host, operation, resource type, name); no name stands for any resource of the type."""


class AclAuthorizer:
    """Implements `security.authorizer.Authorizer`.

    DENY takes precedence. Without a matching ACL, the operation is denied; with `allows_unprotected`, only if another
    ACL applies to the resource. `super_users` may do everything. A decision that was made before is looked up; a change
    of the ACLs drops all decisions. `is_confirmed` returns whether the view has all changes
    that are older than the broker's lease.
    """

    is_enabled = True

    def __init__(
        self,
        view: ClusterView,
        super_users: Iterable[str] = (),
        allows_unprotected: bool = False,
        is_confirmed: Callable[[], bool] = lambda: True,
    ) -> None:
        self.is_confirmed = is_confirmed
        self.view, self.super_users, self.allows_unprotected = view, frozenset(super_users), allows_unprotected
        self.generation = 1
        self.index = AclIndex()
        self.decisions: dict[Decision, bool] = {}
        for key, record in view.security.acls.items():
            self.index.put(key, record)
        view.subscribe_security(self.on_changes)

    def on_changes(self, changed: set[str]) -> None:
        """Apply changes of the cluster view to the index. Called by `ClusterView` with keys of the store."""
        acls, put = self.view.security.acls, self.index.put
        is_changed = [put(key, acls.get(key)) for key in changed if key.startswith(keys.ACLS)]
        if any(is_changed):
            self.generation += 1
            self.decisions.clear()

    def may_decide(self, principal: Principal) -> bool:
        """Return whether decisions about a principal are up to date. Those about super users need no ACLs."""
        return self.is_confirmed() or self.is_super_user(principal)

    def is_allowed(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType, name: str
    ) -> bool:
        """Return whether `principal`, connected from the address `host`, may do `operation` on a resource."""
        key = (principal, host, operation, resource, name)
        decision = self.decisions.get(key)
        if decision is None:
            decision = self.decide(principal, host, operation, resource, name)
            if len(name) <= MAX_CACHED_NAME_CHARS:
                self.cache(key, decision)
        return decision

    def is_allowed_for_any(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType
    ) -> bool:
        """Return whether there may be a resource of this type on which the operation is allowed (KIP-679)."""
        key = (principal, host, operation, resource, None)
        decision = self.decisions.get(key)
        if decision is None:
            decision = self.decide_for_any(principal, host, operation, resource)
            self.cache(key, decision)
        return decision

    def cache(self, key: Decision, decision: bool) -> None:
        """Remember a decision of this generation."""
        if len(self.decisions) >= MAX_CACHED_DECISIONS:
            self.decisions.clear()
        self.decisions[key] = decision

    def is_super_user(self, principal: Principal) -> bool:
        """Return whether `super.users` has a principal, or one of its groups."""
        return not self.super_users.isdisjoint(principal.identities)

    def decide(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType, name: str
    ) -> bool:
        """Decide by the ACLs of the resource."""
        if self.is_super_user(principal):
            return True
        applicable = (*principal.identities, EVERYONE)
        is_protected = is_allowed = False
        for of_pattern in self.index.by_resource[resource].patterns(name):
            is_protected = True
            for who in applicable:
                for acl in of_pattern.get(who, NO_ACLS).values():
                    if (acl.is_allow and is_allowed) or not acl.covers(operation) or not acl.host.matches(host):
                        continue
                    if not acl.is_allow:
                        return False
                    is_allowed = True
        return is_allowed or (self.allows_unprotected and not is_protected)

    def decide_for_any(self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        """Decide as Kafka's `authorizeByResourceType`: an ACL that allows counts unless another one hides it."""
        if self.is_allowed(principal, host, operation, resource, PROBE_NAME):
            return True
        acls = self.index.by_resource[resource]
        matching = [acl for acl in acls_of(acls, principal) if is_direct_match(acl, operation, host)]
        denied = {(acl.pattern, acl.name) for acl in matching if not acl.is_allow}
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(acl.is_allow and not is_hidden(acl, denied) for acl in matching)


def acls_of(acls: ResourceAcls, principal: Principal) -> Iterator[IndexedAcl]:
    """Yield the ACLs of a principal and its groups, and those for everyone."""
    for who in dict.fromkeys((*principal.identities, EVERYONE)):
        yield from acls.by_principal.get(who, NO_ACLS).values()


def is_direct_match(acl: IndexedAcl, operation: AclOperation, host: str) -> bool:
    """Return whether an ACL names the operation, or all operations, and matches the host."""
    return acl.operation in (operation, AclOperation.ALL) and acl.host.matches(host)


def is_hidden(acl: IndexedAcl, denied: set[tuple[PatternType, str]]) -> bool:
    """Return whether everything that an ACL allows is denied by a pattern of the same name or a shorter prefix."""
    if acl.pattern is PatternType.LITERAL and acl.name == WILDCARD:
        return False
    if acl.pattern is PatternType.LITERAL and (acl.pattern, acl.name) in denied:
        return True
    return any((PatternType.PREFIXED, acl.name[:length]) in denied for length in range(1, len(acl.name) + 1))
