"""Clients read user name and password from each file of the Secret as they are, whatever their characters are."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import Sasl, Tls
from penstock.client.security_properties import resolve
from penstock.config.properties import parse_properties
from penstock_operator.model.common import ClusterRef, ObjectMeta
from penstock_operator.model.user import User, UserAuthentication, UserSpec
from penstock_operator.specs.user_secret import is_same, password_problem, secret_data, secret_object
from penstock_spark.jobs.spec.references import properties as spark_properties
from penstock_spark.options.security import pop_security
from penstock_spark.options.text import OptionReader

CHARACTERS = "".join(sorted(set(string.printable) - set(string.whitespace) - {"\\"})) + " "
TEXTS = st.text(CHARACTERS, min_size=1, max_size=40).map(str.strip).filter(bool)


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path at which a pod has mounted the Secret."""
    path: Path = tmp_path_factory.mktemp("user")
    (path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----")
    return str(path)


def user(name: str = "ana", mount: str = "/run/user") -> User:
    authentication = UserAuthentication(mount_path=mount)
    spec = UserSpec(cluster_ref=ClusterRef(name="c"), user_name=name, authentication=authentication)
    return User(metadata=ObjectMeta(name="ana", namespace="ns", uid="me"), spec=spec)


def data(name: str, password: str, ca: bytes | None, mount: str = "/run/user") -> dict[str, str]:
    assert password_problem(password.encode()) is None
    found = secret_data(user(name, mount), password, b"k" * 32, "c.ns.svc:1", ca)
    return {key: value.decode() for key, value in found.items()}


@pytest.mark.parametrize("file", ["client.properties", "client-java.properties"])
@given(name=TEXTS, password=TEXTS)
def test_clients_read_user_and_password(mount: str, file: str, name: str, password: str) -> None:
    found = resolve(parse_properties(data(name, password, b"PEM", mount)[file], file))
    assert found.sasl is not None
    assert (found.sasl.mechanism, found.sasl.username, found.sasl.password) == ("SCRAM-SHA-512", name, password)
    assert (found.bootstrap, found.ignored) == ("c.ns.svc:1", ())
    assert found.tls is not None
    assert found.tls.ca_file == f"{mount}/ca.crt"


@given(name=TEXTS, password=TEXTS)
def test_spark_reads_user_and_password(name: str, password: str) -> None:
    options = OptionReader(spark_properties(data(name, password, b"PEM")["spark.options"]))
    tls, sasl = pop_security(options)
    assert sasl == Sasl("SCRAM-SHA-512", name, password)
    assert tls == Tls(ca_file="/run/user/ca.crt")


def test_without_a_ca_nothing_speaks_tls() -> None:
    found = data("ana", "secret", None)
    assert "ca.crt" not in found
    for name in ("client.properties", "client-java.properties", "spark.options"):
        assert "security.protocol=SASL_PLAINTEXT" in found[name]
        assert "ssl" not in found[name]


@pytest.mark.parametrize("password", [b"", b"a\nb", b"a\\b", b" Q7", b"Q7 ", b"\xff", "Ö".encode(), b"x" * 257])
def test_a_password_that_files_cannot_carry_has_a_problem_that_does_not_contain_it(password: bytes) -> None:
    problem = password_problem(password)
    assert problem is not None
    assert len(password) < 2 or password.decode("latin-1") not in problem


def test_the_secret_is_deleted_with_its_user_and_keys_of_others_do_not_count() -> None:
    made = secret_object(user(), {"password": b"p"}, "monday")
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("User", "me", True)
    assert made["data"] == {"password": "cA=="}
    assert is_same({"password": b"p", "own": b"o"}, {"password": b"p"})
    assert not is_same({"password": b"p", "ca.crt": b"old"}, {"password": b"p"})
