"""The certificates of a `Cluster` with `listeners`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from penstock_operator.model.common import Model
from penstock_operator.model.fields import Rule, doc

MAX_DAYS = 36_500


def days(text: str, default_name: str, low: int = 1) -> msgspec.Meta:
    """Return the description of a number of days."""
    rule = Rule(f"self >= {low} && self <= {MAX_DAYS}", f"certificates.{default_name} must be {low} to {MAX_DAYS}")
    return doc(text, rule, ge=low, le=MAX_DAYS)


class IssuerRef(Model, frozen=True, kw_only=True):
    """An issuer of cert-manager."""

    name: Annotated[str, doc("Name of the issuer.", min_length=1, max_length=253)]
    kind: Annotated[str, doc("Kind of the issuer: Issuer or ClusterIssuer.", min_length=1, max_length=63)] = "Issuer"
    group: Annotated[str, doc("API group of the issuer.", min_length=1, max_length=253)] = "cert-manager.io"


class Certificates(Model, frozen=True, kw_only=True):
    """Certificates of the brokers.

    Brokers and operator always authenticate to each other with certificates of the operator's CA. `source` is about the
    certificate that listeners present to clients.
    """

    # The API server also evaluates them on the empty default, before it adds the defaults of the fields.
    rules = (
        Rule(
            "!has(self.source) || self.source != 'operator' || (!has(self.secretName) && !has(self.issuerRef))",
            "certificates.secretName and issuerRef require source: secret",
        ),
        Rule(
            "!has(self.source) || self.source != 'secret' || has(self.secretName) != has(self.issuerRef)",
            "certificates.source secret requires exactly one of secretName and issuerRef (cert-manager)",
        ),
        Rule(
            "!has(self.validityDays) || self.renewBeforeDays < self.validityDays",
            "certificates.renewBeforeDays must be less than validityDays",
        ),
        Rule(
            "!has(self.validityDays) || self.caValidityDays >= 2 * self.validityDays",
            "certificates.caValidityDays must be at least twice validityDays: a CA outlives the certificates that it"
            " issues",
        ),
    )

    source: Annotated[
        Literal["operator", "secret"],
        doc(
            "Where the certificate that listeners present to clients comes from. operator: from the operator's CA."
            " secret: from a Secret with tls.crt, tls.key and, optionally, ca.crt, which is given by secretName or"
            " written by cert-manager for issuerRef."
        ),
    ] = "operator"
    secret_name: (
        Annotated[
            str, doc("Secret with the certificate, for source secret. Brokers reload it.", min_length=1, max_length=253)
        ]
        | None
    ) = None
    issuer_ref: (
        Annotated[IssuerRef, doc("Issuer of cert-manager that signs the certificate, for source secret.")] | None
    ) = None
    client_ca_secret: (
        Annotated[
            str,
            doc(
                "Secret with ca.crt: the CA of client certificates, for listeners with authentication tls. Default: the"
                " operator's CA.",
                min_length=1,
                max_length=253,
            ),
        ]
        | None
    ) = None
    validity_days: Annotated[int, days("Validity of the certificates that the operator issues.", "validityDays", 2)] = (
        90
    )
    renew_before_days: Annotated[
        int, days("Remaining validity at which the operator renews a certificate.", "renewBeforeDays")
    ] = 30
    ca_validity_days: Annotated[
        int,
        days(
            "Validity of the operator's CA. It is replaced while it still outlives the certificates that it issues.",
            "caValidityDays",
            4,
        ),
    ] = 1825
    ca_overlap_hours: Annotated[
        int,
        doc(
            "Minimum time between the steps of a CA rollover: for clients to get the new CA before brokers use it, and"
            " for clients to get new certificates before brokers reject the old CA.",
            Rule("self >= 0 && self <= 8760", "certificates.caOverlapHours must be 0 to 8760"),
            ge=0,
            le=8760,
        ),
    ] = 24
