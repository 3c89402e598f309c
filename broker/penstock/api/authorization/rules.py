"""The kinds of requirements that `table` is made of.

Fields are named as in the messages of `wire.messages`. Versions are those of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from penstock.config.broker import BrokerConfig
from penstock.state.view import ClusterView
from penstock.wire.acl import AclOperation, ResourceType
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import Message

NEWEST = (1 << 15) - 1
"""Stands for no upper limit of versions."""
ERRORS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The error of a denied operation by the type of its resource."""


class Right(NamedTuple):
    """An operation on a type of resource. `is_for_any` means that one resource of the type suffices, whichever."""

    operation: AclOperation
    resource: ResourceType
    is_for_any: bool = False

    def __str__(self) -> str:
        target = f"any {self.resource.name}" if self.is_for_any else self.resource.name
        return f"{self.operation.name} {target}"


class AuthorizationState(NamedTuple):
    """The state that a requirement may depend on."""

    view: ClusterView
    config: BrokerConfig


class Subject(Protocol):
    """Finds what an element of a request concerns."""

    @property
    def rights(self) -> tuple[Right, ...]:
        """The rights that elements may require, for the reference."""

    def find(self, element: Any, request: Any, facts: AuthorizationState) -> tuple[Right, str] | None:
        """Return the required right and the name of its resource; None if the element requires none."""


@dataclass(frozen=True, slots=True)
class RequestCondition:
    """A condition on a request, with the text for the reference."""

    text: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """The base of requirements: the versions and requests to which one applies."""

    first: int = 0
    last: int = NEWEST
    when: RequestCondition | None = None

    def applies(self, request: Any, version: int) -> bool:
        """Return whether the requirement applies to a request."""
        return self.first <= version <= self.last and (self.when is None or self.when.holds(request))

    @property
    def condition(self) -> str:
        """The versions and the condition, for the reference."""
        texts = []
        if self.first:
            texts.append(f"from version {self.first}")
        if self.last != NEWEST:
            texts.append(f"up to version {self.last}")
        if self.when is not None:
            texts.append(self.when.text)
        return ", ".join(texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRule(Requirement):
    """What a request requires as a whole: one of `rights`, on the resource that the field `name` names.

    Rights on the cluster need no name. A denied request gets the error of the last right's resource.
    """

    rights: tuple[Right, ...]
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementRule(Requirement):
    """What each element of the request's list `requested` requires. Denied ones get an error in the list `answered`.

    `instead` is a right on the cluster that suffices for all elements. `all_of` is the class of an element: a request
    without elements means all topics, and is answered for those that the client may see. With `is_atomic`, one denied
    element fails the others; with `refuses_request`, it refuses the request. With `runs_empty`, the handler runs even
    if all elements are denied.
    """

    subject: Subject
    requested: str
    answered: str = ""
    instead: Right | None = None
    all_of: type[Message] | None = None
    is_atomic: bool = False
    refuses_request: bool = False
    runs_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedRule(Requirement):
    """What each element of the list `requested` of each element of `outer` requires.

    `refuse(element, error)` returns the result of a denied one, which is added to `requested` of the outer result.
    """

    subject: Subject
    outer: str
    requested: str
    refuse: Callable[[Any, int], Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibilityRule(Requirement):
    """Elements of the response that are left out without `right` on what their field `name` names.

    `path` has the fields of the list and of the lists around it. `instead` is as in `ElementRule`.
    """

    right: Right
    path: tuple[str, ...]
    name: str
    instead: Right | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailRule(Requirement):
    """Elements of the response's list `answered` that lose details without `right` on all resources that `names`
    returns: `hide` removes them."""

    right: Right
    answered: str
    names: Callable[[Any], Iterable[str]]
    hide: Callable[[Any], None]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationsRule(Requirement):
    """Bit fields of allowed operations (KIP-430): the field `bits` of each element of `answered`, or of the response.

    The handler sets the operations that exist. Those of the cluster are 0 without DESCRIBE.
    """

    resource: ResourceType
    bits: str
    answered: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class ApiRules:
    """The requirements of an API, in the order in which they are checked.

    `is_administrative` requests go to the audit log, with the names in the field `logged[1]` of the elements of the
    list `logged[0]`. `note` explains for the reference what is enforced elsewhere.
    """

    rules: tuple[Requirement, ...] = ()
    is_administrative: bool = False
    logged: tuple[str, str] | None = None
    note: str = ""
