"""TLS handshakes with single brokers, which show the certificate that a broker presents and whether it accepts one:
implements `ports.brokers.BrokerProber`. A CA rollover waits for both."""

from __future__ import annotations

import asyncio
import hashlib
import ssl

from penstock.client import ClientError
from penstock.runtime.logging import get_logger
from penstock_operator.brokers.certificate_files import CertificateFiles
from penstock_operator.ports.brokers import ClientCertificate

TIMEOUT_S = 5.0

log = get_logger("penstock.operator.brokers")


class TlsProber:
    """Connects, makes a handshake, and closes the connection without a request."""

    async def presented(self, host: str, port: int, certificate: ClientCertificate) -> tuple[str, bool]:
        """Return the fingerprint of the broker's certificate, and whether it accepted the client certificate."""
        files = CertificateFiles(certificate)
        try:
            # In TLS 1.2, unlike 1.3, a handshake is complete only after the server has checked the client.
            accepted = await self._handshake(host, port, files, ssl.TLSVersion.TLSv1_2)
            return accepted or await self._handshake(host, port, None, ssl.TLSVersion.TLSv1_3) or "", bool(accepted)
        finally:
            files.remove()

    async def _handshake(
        self, host: str, port: int, files: CertificateFiles | None, maximum: ssl.TLSVersion
    ) -> str | None:
        """Return the fingerprint of the server's certificate; None if the handshake failed."""
        try:
            context = unverified_context(files)
            context.maximum_version = maximum
            async with asyncio.timeout(TIMEOUT_S):
                _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
        except (OSError, TimeoutError, ClientError) as e:
            log.debug("TLS probe failed", host=host, port=port, why=str(e))
            return None
        presented = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        # Not `close`: if the alert of a broker that refuses the client arrives while TLS is shut down, Python leaves
        # its error in OpenSSL's queue, and the next operation on another connection of the thread fails with it.
        writer.transport.abort()
        return hashlib.sha256(presented).hexdigest() if presented else None


def unverified_context(files: CertificateFiles | None) -> ssl.SSLContext:
    """Return a context that accepts each certificate: the probe compares its fingerprint, and sends nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if files is not None:
        context.load_cert_chain(files.certificate_file, files.key_file)
    return context
