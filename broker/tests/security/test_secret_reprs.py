"""No `repr` of a value contains a secret: values are in tracebacks, messages of assertions and debug logs."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

SECRET = re.compile(
    r"(?:^|_)(?:passwords?|secret|token|jaas|auth_bytes|stored_key|server_key|salted|private_key|key_data"
    r"|keystore_key|credential|pem)$"
)
NO_SECRETS = {
    ("UserAuthentication", "password_secret_ref"): "names a Secret",
    ("UserStatus", "secret"): "names a Secret",
    ("IssueCertificate", "secret"): "names a Secret",
    ("CreateEtcdCertificate", "secret"): "names a Secret",
    ("UserStatus", "credential"): "a hash with a key, which the Secret has",
    ("KeyWrite", "token"): "identifies a write",
    ("ReadCertificate", "pem"): "a certificate",
    ("Etcd", "tls_secret"): "names a Secret",
    ("Certificates", "client_ca_secret"): "names a Secret",
    ("ObservedUser", "secret"): "has a repr of its own",
}
MORE_SECRETS = {
    ("AlterableConfig", "value"),
    ("StoreEntry", "value"),
    ("PutOp", "value"),
    ("ObservedCertificates", "authority_key"),
    ("ObservedCertificates", "issued"),
    ("UpOptions", "settings"),
    ("SourceSpec", "options"),
    ("TopicTarget", "options"),
    ("DeltaTarget", "storage"),
}
MARK = "s3cr3t-in-repr"


def classes(package: str) -> Iterator[type]:
    root = importlib.import_module(package)
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not found.name.endswith("__main__"):
            module = importlib.import_module(found.name)
            yield from (c for c in vars(module).values() if isinstance(c, type) and c.__module__ == found.name)


def fields_of(cls: type) -> list[str]:
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    return list(getattr(cls, "__struct_fields__", ()) or getattr(cls, "_fields", ()))


def shown(cls: type, secrets: list[str]) -> str:
    """Return the `repr` of a value whose secrets are `MARK`, made without the checks of its constructor."""
    values: dict[str, Any] = {name: MARK if name in secrets else "" for name in fields_of(cls)}
    if cls.__repr__ is msgspec.Struct.__repr__ or issubclass(cls, tuple):
        return repr(values)
    if not dataclasses.is_dataclass(cls):
        known = {name: getattr(cls, name) for name in ("SECRETS", "__struct_fields__") if hasattr(cls, name)}
        return str(cls.__repr__(type(cls.__name__, (), known | values)()))  # type: ignore[arg-type]
    made = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return repr(made)


@pytest.mark.slow
@pytest.mark.parametrize(("package", "least"), [("penstock", 20), ("penstock_operator", 5), ("penstock_spark", 3)])
def test_no_repr_shows_a_secret(package: str, least: int) -> None:
    checked = 0
    for cls in classes(package):
        places = [(cls.__name__, name) for name in fields_of(cls)]
        secrets = [p for p in places if (SECRET.search(p[1]) and p not in NO_SECRETS) or p in MORE_SECRETS]
        if secrets:
            checked += len(secrets)
            assert MARK not in shown(cls, [name for _, name in secrets]), f"{cls} shows one of {secrets}"
    assert checked >= least


def test_a_repr_that_shows_a_secret_is_noticed() -> None:
    plain = dataclasses.make_dataclass("Plain", [("password", str)])
    struct = msgspec.defstruct("Struct", [("password", str)])
    assert all(MARK in shown(cls, ["password"]) for cls in (plain, struct))
