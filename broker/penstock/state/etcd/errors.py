"""Maps errors of etcd and gRPC to those of the store. Used by `calls`, `watch` and `auth`.

The texts are part of etcd's API: its own clients tell errors apart by them, because the status codes are too coarse.
"""

from __future__ import annotations

from enum import Enum, auto

from grpc import StatusCode

from penstock.state.store import Compacted, LeaseExpired, StoreError, StoreUnavailable


class CallOutcome(Enum):
    """Whether a failed call had an effect, and who could retry it."""

    UNKNOWN = auto()
    """No response: the call may have been applied."""
    OTHER_MEMBER = auto()
    """Not applied; another member may accept it."""
    TOKEN = auto()
    """Not applied: the token is invalid or expired."""
    REFUSED = auto()
    """Not applied, and every member would refuse it."""


class NoAnswer(StoreUnavailable):
    """One member did not respond; `detail` is gRPC's reason."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class ForeignCluster(StoreError):
    """An endpoint belongs to another etcd cluster than the one used so far."""


class MessageTooLarge(StoreError):
    """A response exceeds this client's limit."""


NO_LEADER = "etcdserver: no leader"
TOKEN_TEXTS = (
    "invalid auth token",
    "user name is empty",  # sent without a token
    "revision of auth store is old",
    "revision in header is old",
)
UNKNOWN_CODES = frozenset({StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED})


def outcome_of(code: StatusCode, details: str) -> CallOutcome:
    """Classify a failed call."""
    if details == NO_LEADER:
        return CallOutcome.OTHER_MEMBER  # checked before the request, because of REQUIRE_LEADER
    if code is StatusCode.UNAUTHENTICATED or any(text in details for text in TOKEN_TEXTS):
        return CallOutcome.TOKEN
    if code in UNKNOWN_CODES or not details.startswith(("etcdserver:", "auth:", "lease ")):
        # Errors from elsewhere (a proxy that cut the stream, gRPC's INTERNAL) say nothing about the outcome.
        return CallOutcome.REFUSED if is_too_large(code, details) else CallOutcome.UNKNOWN
    return CallOutcome.REFUSED


def is_too_large(code: StatusCode, details: str) -> bool:
    """Return whether a response exceeded this client's limit."""
    return code is StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details


def error_of(code: StatusCode, details: str, url: str) -> StoreError | ValueError:
    """Return the error to raise for a refused call."""
    for text, make in ERROR_FACTORIES:
        if text in details:
            return make(details, url)
    if is_too_large(code, details):
        return MessageTooLarge(f'a response of etcd at "{url}" is too large: {details}')
    return StoreError(f'etcd at "{url}" refused the call: {details} ({code.name})')


def compacted(details: str, url: str) -> StoreError:
    """Return the error for a compacted revision."""
    return Compacted(f'the revision was compacted by etcd at "{url}"; list again')


def future(details: str, url: str) -> ValueError:
    """Return the error for a revision in the future."""
    return ValueError(f'the revision is in the future of etcd at "{url}"')


def no_lease(details: str, url: str) -> StoreError:
    """Return the error for an expired lease."""
    return LeaseExpired("the lease does not exist or has expired")


def no_space(details: str, url: str) -> StoreError:
    """Return the error for a full database."""
    return StoreUnavailable(
        f'etcd at "{url}" accepts no writes: its database has reached its quota; compact and defragment it and disarm'
        " the alarm (etcdctl alarm disarm), or raise --quota-backend-bytes"
    )


def too_many(details: str, url: str) -> StoreError:
    """Return the error for an overloaded etcd."""
    return StoreUnavailable(f'etcd at "{url}" is overloaded ({details}); retry later')


def request_too_large(details: str, url: str) -> ValueError:
    """Return the error for a transaction beyond etcd's limit."""
    return ValueError(
        f'the transaction exceeds the limit of etcd at "{url}"; set --max-request-bytes to at least 1.5 MiB'
    )


def too_many_operations(details: str, url: str) -> StoreError:
    """Return the error for an etcd with a low `--max-txn-ops`."""
    return StoreError(f'etcd at "{url}" allows too few operations per transaction; set --max-txn-ops to at least 128')


def not_permitted(details: str, url: str) -> StoreError:
    """Return the error for missing permissions."""
    return StoreError(
        f'permission denied by etcd at "{url}"; grant the user a role that can read and write keys under /penstock/'
    )


def wrong_password(details: str, url: str) -> StoreError:
    """Return the error for a wrong user or password."""
    return StoreError(f'authentication failed at etcd at "{url}"; check user and password')


ERROR_FACTORIES = (
    ("required revision has been compacted", compacted),
    ("required revision is a future revision", future),
    ("requested lease not found", no_lease),
    ("database space exceeded", no_space),
    ("too many requests", too_many),
    ("request is too large", request_too_large),
    ("too many operations", too_many_operations),
    ("permission denied", not_permitted),
    ("authentication failed", wrong_password),
)
