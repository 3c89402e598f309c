"""Brokers that mount the Secret with their certificate: kubelets update it with a delay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from doubles.kube import FakeKube

from penstock_operator.ports.brokers import ClientCertificate
from penstock_operator.ports.kube import SECRETS, KubeResource
from penstock_operator.specs.certificates import CA, CERTIFICATE, read_certificate, read_certificates, text_of


class MountedSecrets:
    """A `ports.brokers.BrokerProber`. Brokers use the Secret as it was `delay_s` ago; those in `stuck` as it was when
    they were put there."""

    def __init__(self, kube: FakeKube, now: Callable[[], float]) -> None:
        self._now = now
        self.delay_s = 60.0
        self.stuck: dict[int, float] = {}
        self.handshakes = 0
        self._versions: list[tuple[float, dict[str, Any]]] = []
        kube.seen = self._changed

    def _changed(self, resource: KubeResource, body: dict[str, Any], is_new: bool, is_deleted: bool) -> None:
        if resource == SECRETS and body["metadata"]["name"] == "c-broker-tls":
            self._versions.append((self._now(), body))

    def mounted(self, broker: int) -> dict[str, Any]:
        at = self.stuck.get(broker, self._now() - self.delay_s)
        return [body for time, body in self._versions if time <= at or body is self._versions[0][1]][-1]

    def accepts(self, broker: int, certificate: str) -> bool:
        trusted = read_certificates(text_of(self.mounted(broker), CA))
        return any(read_certificate(certificate).is_issued_by(authority) for authority in trusted)

    async def presented(self, host: str, port: int, certificate: ClientCertificate) -> tuple[str, bool]:
        self.handshakes += 1
        broker = int(host.partition(".")[0].rpartition("-")[2])
        present = read_certificate(text_of(self.mounted(broker), CERTIFICATE))
        return present.fingerprint, self.accepts(broker, certificate.certificate)
