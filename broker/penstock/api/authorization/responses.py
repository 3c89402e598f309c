"""Removes from responses what a client may not see. Used by `enforcement`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.api.authorization.access import Access
from penstock.api.authorization.rules import DetailRule, OperationsRule, Requirement, VisibilityRule
from penstock.wire.acl import AclOperation, ResourceType
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import Message, Payload

NO_OPERATIONS = -(1 << 31)
"""The value of a bit field that was not requested."""
DENIALS: dict[int, str] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional id authorization failed.",
}
"""The messages of denials, where a response has a field for them."""


def explain_denials(message: Message) -> None:
    """Set the error message beside each error code in the response to a refused request."""
    text = DENIALS.get(getattr(message, "error_code", ErrorCode.NONE))
    if text is not None and getattr(message, "error_message", "") is None:
        message.error_message = text  # type: ignore[attr-defined]
    for field in message.FIELDS:
        if field.array and not isinstance(field.type, str):
            for element in getattr(message, field.name) or ():
                explain_denials(element)


def finish_response(
    rules: Sequence[Requirement], request: Any, response: Payload, version: int, access: Access
) -> list[VisibilityRule]:
    """Apply the rules that concern the response of a handler. Returns those by which elements were left out."""
    applied = []
    for rule in rules:
        if not rule.applies(request, version):
            continue
        if isinstance(rule, VisibilityRule):
            if not show_allowed(rule, response, access):
                applied.append(rule)
        elif isinstance(rule, DetailRule):
            hide_details(rule, response, access)
        elif isinstance(rule, OperationsRule):
            limit_operations(rule, response, access)
    return applied


def show_allowed(rule: VisibilityRule, response: Any, access: Access) -> bool:
    """Leave out the elements that the client may not see. Those without a name were checked by their id.

    Returns whether there is nothing to leave out.
    """
    if rule.instead is not None and access.may(rule.instead.operation, rule.instead.resource):
        return True
    *around, last = rule.path
    containers = [response]
    for field in around:
        containers = [element for container in containers for element in getattr(container, field)]
    operation, resource, is_whole = rule.right.operation, rule.right.resource, True
    for container in containers:
        elements = getattr(container, last)
        shown = [e for e in elements if not (name := getattr(e, rule.name)) or access.may(operation, resource, name)]
        if len(shown) != len(elements):
            setattr(container, last, shown)
            is_whole = False
    return is_whole


def hide_details(rule: DetailRule, response: Any, access: Access) -> None:
    """Remove details of elements that the client may not see."""
    for element in getattr(response, rule.answered):
        operation, resource = rule.right.operation, rule.right.resource
        if not all(access.may(operation, resource, name) for name in rule.names(element)):
            rule.hide(element)


def limit_operations(rule: OperationsRule, response: Any, access: Access) -> None:
    """Remove the operations that the client may not do from bit fields."""
    if not rule.answered:
        existing = getattr(response, rule.bits)
        if existing != NO_OPERATIONS:
            may_describe = access.may(AclOperation.DESCRIBE, ResourceType.CLUSTER)
            setattr(response, rule.bits, allowed_operations(existing, access) if may_describe else 0)
        return
    for element in getattr(response, rule.answered):
        existing = getattr(element, rule.bits)
        if existing != NO_OPERATIONS:
            name = getattr(element, rule.name)
            setattr(element, rule.bits, allowed_operations(existing, access, rule.resource, name))


def allowed_operations(
    existing: int, access: Access, resource: ResourceType = ResourceType.CLUSTER, name: str | None = None
) -> int:
    """Return the bits of `existing` whose operations the client may do on a resource."""
    target = (resource,) if name is None else (resource, name)
    return sum(
        1 << operation for operation in AclOperation if existing & 1 << operation and access.may(operation, *target)
    )
