"""A broker with an authorizer, to which everyone is an administrator, for tests of `user`, `acl` and `quota`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from session_broker import address_of_broker


@contextmanager
def authorizing_broker() -> Iterator[str]:
    """Yield the broker's address."""
    given = os.environ.pop("PENSTOCK_BOOTSTRAP", None)
    try:
        with address_of_broker("authorizer.class.name=StandardAuthorizer", "super.users=User:ANONYMOUS") as address:
            yield address
    finally:
        if given is not None:
            os.environ["PENSTOCK_BOOTSTRAP"] = given
