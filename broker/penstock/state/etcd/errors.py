"""What etcd's and gRPC's errors mean to a caller of the store. Used by `calls`, `watch` and `auth`.

The texts are part of etcd's API (its clients tell errors apart by them), as the status codes are too coarse.
"""

from __future__ import annotations

from enum import Enum, auto

from grpc import StatusCode

from penstock.state.store import Compacted, LeaseExpired, StoreError, StoreUnavailable


class CallOutcome(Enum):
    """What a failed call says about itself."""

    UNKNOWN = auto()
    """No answer: it may or may not have been done."""
    ELSEWHERE = auto()
    """Not done, and another member may do it."""
    TOKEN = auto()
    """Not done, as the token is not valid (any more)."""
    REFUSED = auto()
    """Not done, and no other member would."""


class NoAnswer(StoreUnavailable):
    """One member gave none; `detail` is what gRPC knows of the reason."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class ForeignCluster(StoreError):
    """An endpoint belongs to another etcd cluster than the one that was used so far."""


class MessageTooLarge(StoreError):
    """An answer was larger than this client takes."""


NO_LEADER = "etcdserver: no leader"
TOKEN_TEXTS = (
    "invalid auth token",
    "user name is empty",  # sent without a token
    "revision of auth store is old",
    "revision in header is old",
)
UNKNOWN_CODES = frozenset({StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED})


def outcome_of(code: StatusCode, details: str) -> CallOutcome:
    if details == NO_LEADER:
        return CallOutcome.ELSEWHERE  # looked at before a request is taken, since we ask for a leader
    if code is StatusCode.UNAUTHENTICATED or any(text in details for text in TOKEN_TEXTS):
        return CallOutcome.TOKEN
    if code in UNKNOWN_CODES or not details.startswith(("etcdserver:", "auth:", "lease ")):
        # What does not come from etcd itself (a stream cut by a proxy, gRPC's own INTERNAL) tells nothing.
        return CallOutcome.REFUSED if too_large(code, details) else CallOutcome.UNKNOWN
    return CallOutcome.REFUSED


def too_large(code: StatusCode, details: str) -> bool:
    return code is StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details


def error_of(code: StatusCode, details: str, url: str) -> StoreError | ValueError:
    """What to raise for a call that was refused."""
    for text, make in MEANINGS:
        if text in details:
            return make(details, url)
    if too_large(code, details):
        return MessageTooLarge(f"an answer of etcd at {url} is too large: {details}")
    return StoreError(f"etcd at {url} refused: {details} ({code.name})")


def compacted(details: str, url: str) -> StoreError:
    return Compacted(f"the revision is no longer kept by etcd at {url}: list again")


def future(details: str, url: str) -> ValueError:
    return ValueError(f"the revision is in the future of etcd at {url}")


def no_lease(details: str, url: str) -> StoreError:
    return LeaseExpired("the lease is not there, or not any more")


def no_space(details: str, url: str) -> StoreError:
    return StoreUnavailable(
        f"etcd at {url} takes no more writes, its database has reached its quota: compact and defragment it, disarm"
        " the alarm (etcdctl alarm disarm), or raise --quota-backend-bytes"
    )


def too_many(details: str, url: str) -> StoreError:
    return StoreUnavailable(f"etcd at {url} is overloaded ({details}): it will take requests again when it catches up")


def request_too_large(details: str, url: str) -> ValueError:
    return ValueError(
        f"the transaction has more bytes than etcd at {url} takes (--max-request-bytes, at least 1.5 MiB by default)"
    )


def too_many_operations(details: str, url: str) -> StoreError:
    return StoreError(f"etcd at {url} takes fewer operations a transaction than needed: set --max-txn-ops=128 or more")


def not_permitted(details: str, url: str) -> StoreError:
    return StoreError(
        f"the user may not do this in etcd at {url}: grant it a role that may read and write keys under /penstock/"
    )


def wrong_password(details: str, url: str) -> StoreError:
    return StoreError(f"etcd at {url} does not know the user with this password: check user and password")


MEANINGS = (
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
