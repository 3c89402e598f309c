"""The Secret of a User with a client certificate. Used by `reconcile.user` and `users`.

`user.crt`, `user.key`: for librdkafka and the `penstock` command. `user.pem`, both: for Java clients and Spark.
`user.p12`, with its password in `user.password`: for programs that read PKCS#12 only.
"""

from __future__ import annotations

import re

from penstock_operator.model.user import User
from penstock_operator.specs.user_secret import CA, JAVA, LIBRDKAFKA, SPARK, properties

CERTIFICATE, KEY, BOTH, STORE, STORE_PASSWORD = "user.crt", "user.key", "user.pem", "user.p12", "user.password"
CERTIFICATE_KEYS = (CERTIFICATE, KEY, BOTH, STORE, STORE_PASSWORD)
COMMON_NAME = re.compile(r"CN=([A-Za-z0-9](?:[A-Za-z0-9 ._@-]{0,62}[A-Za-z0-9])?)")
"""A name that consists of a common name, without characters that are escaped in distinguished names (RFC 4514)."""


def common_name(user: User) -> str | None:
    """Return the common name of the user's certificate; None if its name has other parts."""
    found = COMMON_NAME.fullmatch(user.user_name)
    return None if found is None else found[1]


def certificate_files(user: User, bootstrap: str, ca: bytes | None) -> dict[str, bytes]:
    """Return the content of the Secret by key, without key and certificate. `ca`: CA certificates that clients trust;
    None: those of the system."""
    mount = user.spec.authentication.mount_path.rstrip("/")
    common = {"bootstrap.servers": bootstrap, "security.protocol": "SSL"}
    librdkafka = {
        **common,
        "ssl.certificate.location": f"{mount}/{CERTIFICATE}",
        "ssl.key.location": f"{mount}/{KEY}",
        **({} if ca is None else {"ssl.ca.location": f"{mount}/{CA}"}),
    }
    trust = {} if ca is None else {"ssl.truststore.type": "PEM", "ssl.truststore.location": f"{mount}/{CA}"}
    stores = {"ssl.keystore.type": "PEM", "ssl.keystore.location": f"{mount}/{BOTH}", **trust}
    spark = {"security.protocol": "SSL", **stores}
    files = {
        LIBRDKAFKA: properties(librdkafka),
        JAVA: properties({**common, **stores}),
        SPARK: properties({f"kafka.{name}": text for name, text in spark.items()}),
    }
    encoded = {name: text.encode() for name, text in files.items()}
    return encoded if ca is None else encoded | {CA: ca}
