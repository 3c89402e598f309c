"""Applies the table to decoded requests. The dispatcher calls it before and after the handler of a route.

The handler gets the part of a request that is allowed. The results of the rest are those of the route's `failure`, and
are added to the handler's response. The dispatcher calls it only if there is authorization.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from penstock.api.authorization.access import Access
from penstock.api.authorization.audited import audited_names, error_names
from penstock.api.authorization.responses import explain_denials, finish_response
from penstock.api.authorization.rules import (
    ERRORS,
    ApiRules,
    AuthorizationState,
    ElementRule,
    NestedRule,
    RequestRule,
    Right,
    VisibilityRule,
)
from penstock.api.authorization.table import TABLE
from penstock.api.routes import RequestContext, Route
from penstock.config.broker import BrokerConfig
from penstock.security.audit import AuditLog
from penstock.security.authorizer import Authorizer
from penstock.state.view import ClusterView
from penstock.wire.acl import CLUSTER_NAME, ResourceType
from penstock.wire.apis import api_name
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import Payload


class Enforcement:
    """The requirements of all APIs, for one broker."""

    def __init__(self, authorizer: Authorizer, view: ClusterView, config: BrokerConfig, audit: AuditLog) -> None:
        self.authorizer, self.audit, self.facts = authorizer, audit, AuthorizationState(view, config)

    def admit(self, route: Route, request: Payload, context: RequestContext) -> Admission:
        """Check a request. The admission has the allowed part, or the response if nothing is left for the handler."""
        access = Access(self.authorizer, self.audit, context.peer, route.request.KEY)
        admission = Admission(route, request, context.version, access, TABLE[route.request.KEY], self.facts)
        admission.check()
        return admission


class Admission:
    """A request whose rights were checked."""

    __slots__ = ("access", "denied", "facts", "nested", "original", "request", "response", "route", "rules", "version")

    def __init__(
        self, route: Route, request: Payload, version: int, access: Access, rules: ApiRules, facts: AuthorizationState
    ) -> None:
        self.route, self.version, self.access, self.rules, self.facts = route, version, access, rules, facts
        self.original = request
        self.request: Any = request
        """The part of the request that is allowed."""
        self.response: Payload | None = None
        """The response if the handler must not run."""
        self.denied: list[tuple[str, list[Any]]] = []
        """Results of denied elements, by the list of the response that gets them."""
        self.nested: list[tuple[NestedRule, list[list[Any]]]] = []
        """Results of denied nested elements, by the position of the outer element."""

    def check(self) -> None:
        """Check the requirements in their order."""
        for rule in self.rules.rules:
            if not rule.applies(self.request, self.version):
                continue
            if isinstance(rule, RequestRule):
                self.check_request(rule)
            elif isinstance(rule, ElementRule):
                self.check_elements(rule)
            elif isinstance(rule, NestedRule):
                self.check_nested(rule)
            if self.response is not None:
                return

    def check_request(self, rule: RequestRule) -> None:
        """Refuse the request unless the client has one of the rights."""
        for right in rule.rights:
            if self.is_allowed(right, self.name_for(right, rule)):
                return
        self.access.deny(right.operation, right.resource, self.name_for(right, rule))
        self.response = self.refuse(self.request, ERRORS[right.resource])

    def name_for(self, right: Right, rule: RequestRule) -> str:
        """Return the name of the resource of a right."""
        is_cluster = not rule.name or right.resource is ResourceType.CLUSTER
        return CLUSTER_NAME if is_cluster else getattr(self.request, rule.name)

    def is_allowed(self, right: Right, name: str) -> bool:
        """Return whether the client has a right."""
        if right.is_for_any:
            return self.access.may_for_any(right.operation, right.resource)
        return self.access.may(right.operation, right.resource, name)

    def refuse(self, request: Payload, error: ErrorCode) -> Payload:
        """Return the response with an error for everything in a request."""
        assert self.route.failure is not None, f"{self.route.request.__name__} can be refused"
        response = self.route.failure(request, error)
        explain_denials(response)
        return response

    def check_elements(self, rule: ElementRule) -> None:
        """Split the elements of a list into allowed and denied ones."""
        elements: Sequence[Any] | None = getattr(self.request, rule.requested)
        if not elements and rule.all_of is not None:
            self.select_all(rule)
        if not elements or (rule.instead is not None and self.is_allowed(rule.instead, CLUSTER_NAME)):
            return
        allowed, denied = self.split(rule.subject.find(e, self.request, self.facts) for e in elements)
        if not denied:
            return
        if rule.refuses_request:
            self.response = self.refuse(self.request, next(iter(denied)))
            return
        kept = [elements[position] for position in allowed]
        results = self.denied_results(rule, elements, denied)
        if rule.is_atomic:
            results += self.unattempted_elements(rule, kept)
        if rule.is_atomic or not (kept or rule.runs_empty):
            self.response = self.route.response()
            setattr(self.response, rule.answered, results)
            return
        self.request = msgspec.structs.replace(self.request, **{rule.requested: kept})
        self.denied.append((rule.answered, results))

    def select_all(self, rule: ElementRule) -> None:
        """Make a request for all topics one for the topics that the client may see."""
        assert rule.all_of is not None, "the rule has a class of elements"
        (right,) = rule.subject.rights
        names = [name for name in self.facts.view.topics if self.is_allowed(right, name)]
        if names:
            elements = [rule.all_of(name=name) for name in names]
            self.request = msgspec.structs.replace(self.request, **{rule.requested: elements})
        else:
            self.response = self.route.response()

    def split(self, found: Iterable[tuple[Right, str] | None]) -> tuple[list[int], dict[ErrorCode, list[int]]]:
        """Return the positions of allowed elements, and those of denied ones by error."""
        allowed: list[int] = []
        denied: dict[ErrorCode, list[int]] = {}
        for position, required in enumerate(found):
            if required is None or self.is_allowed(*required):
                allowed.append(position)
            else:
                right, name = required
                self.access.deny(right.operation, right.resource, name)
                denied.setdefault(ERRORS[right.resource], []).append(position)
        return allowed, denied

    def denied_results(
        self, rule: ElementRule, elements: Sequence[Any], denied: dict[ErrorCode, list[int]]
    ) -> list[Any]:
        """Return the results of denied elements; `denied` has their positions by error."""
        results: list[Any] = []
        for error, positions in denied.items():
            results += self.refused_elements(rule, [elements[position] for position in positions], error)
        return results

    def refused_elements(self, rule: ElementRule, elements: list[Any], error: ErrorCode) -> list[Any]:
        """Return the results of elements with an error, as the route's `failure` makes them."""
        if not elements:
            return []
        refused = self.refuse(msgspec.structs.replace(self.request, **{rule.requested: elements}), error)
        results: list[Any] = getattr(refused, rule.answered)
        return results

    def unattempted_elements(self, rule: ElementRule, elements: list[Any]) -> list[Any]:
        """Return the results of allowed topics beside a denied one: as in Kafka, missing ones are reported as such."""
        known = self.facts.view.topics
        present = [element for element in elements if element.name in known]
        missing = [element for element in elements if element.name not in known]
        results = self.refused_elements(rule, present, ErrorCode.OPERATION_NOT_ATTEMPTED)
        return results + self.refused_elements(rule, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def check_nested(self, rule: NestedRule) -> None:
        """Split the nested elements of each outer element."""
        outers, refused = [], []
        for outer in getattr(self.request, rule.outer):
            elements: Sequence[Any] = getattr(outer, rule.requested) or ()
            allowed, denied = self.split(rule.subject.find(e, self.request, self.facts) for e in elements)
            refused.append([rule.refuse(elements[p], error) for error, positions in denied.items() for p in positions])
            if denied:
                kept = [elements[position] for position in allowed]
                outer = msgspec.structs.replace(outer, **{rule.requested: kept})
            outers.append(outer)
        if any(refused):
            self.request = msgspec.structs.replace(self.request, **{rule.outer: outers})
            self.nested.append((rule, refused))

    def finish(self, response: Payload) -> Payload:
        """Complete the handler's response: remove what the client may not see, and add the results of the rest."""
        for left_out in finish_response(self.rules.rules, self.request, response, self.version, self.access):
            self.deny_named(left_out)
        for nested, refused in self.nested:
            for outer, results in zip(getattr(response, nested.outer), refused, strict=False):
                if results and not outer.error_code:
                    setattr(outer, nested.requested, [*getattr(outer, nested.requested), *results])
        has_failed = getattr(response, "error_code", ErrorCode.NONE) != ErrorCode.NONE
        for answered, results in self.denied if not has_failed else ():
            setattr(response, answered, [*(getattr(response, answered) or ()), *results])
        self.record(response)
        return response

    def deny_named(self, left_out: VisibilityRule) -> None:
        """Deny the elements that the request names and the client may no longer see.

        Otherwise a right that was revoked while the handler waited would leave them without a result.
        """
        for rule in self.rules.rules:
            if not rule.applies(self.request, self.version):
                continue
            if isinstance(rule, ElementRule) and rule.subject.rights == (left_out.right,):
                if left_out.path == (rule.answered,):
                    elements: Sequence[Any] = getattr(self.request, rule.requested) or ()
                    _, denied = self.split(rule.subject.find(e, self.request, self.facts) for e in elements)
                    self.denied.append((rule.answered, self.denied_results(rule, elements, denied)))
            elif isinstance(rule, NestedRule) and left_out.path == (rule.outer, rule.requested):
                self.check_nested(rule)

    def record(self, response: Payload) -> None:
        """Write an administrative request to the audit log."""
        if self.rules.is_administrative:
            peer, names = self.access.peer, audited_names(self.rules, self.original, self.version, self.facts)
            api = api_name(self.route.request.KEY)
            self.access.audit.record_action(peer.principal, peer.host, api, names, error_names(response))
