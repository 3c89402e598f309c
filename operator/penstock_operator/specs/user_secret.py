"""The Secret of a User: user name, password, and files for clients. Used by `reconcile.user`.

The files have the names of librdkafka (`client.properties`), of Java clients (`client-java.properties`) and of Spark
sources (`spark.options`). User names and passwords are printable ASCII without backslash, because clients differ in how
they read other characters.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

from penstock_operator.model.common import API_VERSION
from penstock_operator.model.user import PLAIN_TEXT, ROTATE_PASSWORD, User
from penstock_operator.ports.kube import Object

USERNAME, PASSWORD, CA = "username", "password", "ca.crt"
FINGERPRINT_KEY = "fingerprint-key"
JAAS, LIBRDKAFKA, JAVA, SPARK = "sasl.jaas.config", "client.properties", "client-java.properties", "spark.options"
LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OPERATORS = frozenset(
    {
        USERNAME, PASSWORD, CA, FINGERPRINT_KEY, JAAS, LIBRDKAFKA, JAVA, SPARK,
        "user.crt", "user.key", "user.pem", "user.p12", "user.password",
    }
)  # fmt: skip
"""Keys that the operator writes, for users with passwords and with certificates."""
MAX_PASSWORD_BYTES = 256
MANAGED_BY = {"app.kubernetes.io/managed-by": "penstock-operator"}


def password_problem(password: bytes) -> str | None:
    """Return why some clients cannot read a password from the files; None if all can. Does not contain the password."""
    if not password:
        return "it is empty"
    if len(password) > MAX_PASSWORD_BYTES:
        return f"it is longer than {MAX_PASSWORD_BYTES} bytes"
    text = password.decode("ascii", "replace")
    if re.fullmatch(PLAIN_TEXT, text) is None:
        return "it has a line break, a backslash, or a character that is not printable ASCII"
    return "it starts or ends with a space" if text != text.strip() else None


def secret_data(user: User, password: str, key: bytes, bootstrap: str, ca: bytes | None) -> dict[str, bytes]:
    """Return the content of the Secret by key. `ca`: the cluster's CA certificates, None without TLS."""
    assert user.mechanism is not None, "only users with a password have a Secret"
    name, mount = user.user_name, user.spec.authentication.mount_path.rstrip("/")
    jaas = f'{LOGIN_MODULE} required username="{in_quotes(name)}" password="{in_quotes(password)}";'
    protocol = "SASL_PLAINTEXT" if ca is None else "SASL_SSL"
    common = {"security.protocol": protocol, "sasl.mechanism": user.mechanism}
    librdkafka = {
        "bootstrap.servers": bootstrap,
        **common,
        "sasl.username": name,
        "sasl.password": password,
        **({} if ca is None else {"ssl.ca.location": f"{mount}/{CA}"}),
    }
    trust = {} if ca is None else {"ssl.truststore.type": "PEM", "ssl.truststore.location": f"{mount}/{CA}"}
    java = {**common, **trust, JAAS: jaas}
    data = {
        USERNAME: name,
        PASSWORD: password,
        JAAS: jaas,
        LIBRDKAFKA: properties(librdkafka),
        JAVA: properties({"bootstrap.servers": bootstrap, **java}),
        SPARK: properties({f"kafka.{key}": value for key, value in java.items()}),
    }
    encoded = {name: text.encode() for name, text in data.items()} | {FINGERPRINT_KEY: key}
    return encoded if ca is None else encoded | {CA: ca}


def removed_keys(before: Mapping[str, bytes], data: Mapping[str, bytes]) -> set[str]:
    """Return the keys of the operator that `data` no longer has. Keys that a user added stay."""
    return {key for key in before.keys() - data.keys() if key in OPERATORS}


def is_same(before: Mapping[str, bytes], data: Mapping[str, bytes]) -> bool:
    """Whether a Secret has the data, whatever other keys a user added."""
    return not removed_keys(before, data) and all(before.get(name) == value for name, value in data.items())


def secret_object(user: User, data: Mapping[str, bytes], rotation: str) -> Object:
    """Return the Secret, which is deleted with the User. `rotation`: text of the last rotation's annotation."""
    meta = user.metadata
    owner = {"apiVersion": API_VERSION, "kind": "User", "name": meta.name, "uid": meta.uid, "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": user.secret_name,
            "namespace": meta.namespace,
            "labels": dict(MANAGED_BY),
            "annotations": {ROTATE_PASSWORD: rotation},
            "ownerReferences": [owner],
        },
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }


def in_quotes(text: str) -> str:
    """Return text for the inside of double quotes in `sasl.jaas.config`."""
    return re.sub(r'(["\\])', r"\\\1", text)


def properties(entries: Mapping[str, str]) -> str:
    """Return lines `key=value` in the format of `java.util.Properties`. Values are ASCII and start with no space."""
    return "".join(f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in entries.items())
