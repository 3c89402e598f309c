"""Reloads certificates and CA certificates when the content of their files or the dynamic settings change.

Reads the files of all listeners every few seconds in a thread and compares their content, which also finds the swap of
a symbolic link by which Kubernetes updates a Secret. Connections that are open keep their certificates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from penstock.config.definition import InvalidSetting
from penstock.config.listener_security import TlsSettings
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report, spawn
from penstock.server.tls.contexts import TlsContexts, date_text
from penstock.server.tls.listener_tls import ListenerTls
from penstock.server.tls.stores import StoreSources, read_sources

log = get_logger(__name__)

POLL_INTERVAL_S = 5.0
Reloaded = tuple[TlsSettings, StoreSources, TlsContexts]


class CertificateReloader:
    """Polls until it is closed. `settings_of` returns the present settings of a listener; it may raise `InvalidSetting`
    and read files, and is called in a thread."""

    def __init__(
        self,
        listeners: Sequence[ListenerTls],
        settings_of: Callable[[str], TlsSettings],
        executor: Executor | None = None,
        interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        self.listeners, self.settings_of, self.executor, self.interval_s = listeners, settings_of, executor, interval_s
        self.changed = asyncio.Event()
        self.polling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to poll."""
        self.polling = spawn(self.poll(), "certificate reloader")

    async def close(self) -> None:
        """Stop."""
        if self.polling is not None:
            self.polling.cancel()
            await asyncio.gather(self.polling, return_exceptions=True)

    def on_settings_changed(self) -> None:
        """Check now: dynamic settings have changed."""
        self.changed.set()

    async def poll(self) -> None:
        """Check all listeners at each interval, and at once after a change of settings."""
        while True:
            try:
                async with asyncio.timeout(self.interval_s):
                    await self.changed.wait()
            except TimeoutError:
                pass
            self.changed.clear()
            await self.check_all()

    async def check_all(self) -> None:
        """Check all listeners once."""
        for tls in self.listeners:
            try:
                await self.check(tls)
            except Exception as e:  # the other listeners must still be checked
                report("failed to check certificates", e, listener=tls.listener)

    async def check(self, tls: ListenerTls) -> None:
        """Replace a listener's contexts if its files or settings have changed and are valid."""
        loop = asyncio.get_running_loop()
        found, error = await loop.run_in_executor(self.executor, self.load, tls)
        if error is not None:
            self.report_failure(tls, error)
            return
        if found is None:
            if tls.reload_error is not None:
                tls.reload_error = None
                log.info("certificates are valid again", listener=tls.listener)
            return
        tls.replace_contexts(*found)
        identity = tls.contexts.identity
        log.info("certificates reloaded", listener=tls.listener, expires=date_text(identity.expires_at))

    def load(self, tls: ListenerTls) -> tuple[Reloaded | None, str | None]:
        """Return what replaces the present contexts, None if nothing has changed, and why it cannot. Runs in a
        thread."""
        try:
            settings = self.settings_of(tls.listener)
            sources = read_sources(settings)
            if settings == tls.settings and sources == tls.sources:
                return None, None
            if sources != read_sources(settings):  # files are being replaced
                return None, tls.reload_error
            return (settings, sources, tls.rebuilt(settings, sources)), None
        except InvalidSetting as e:
            return None, str(e)

    def report_failure(self, tls: ListenerTls, error: str) -> None:
        """Count and log a failure once, as long as it stays the same."""
        if error != tls.reload_error:
            tls.failed_reloads += 1
            tls.reload_error = error
            log.error("certificates not reloaded; the present ones stay in use", listener=tls.listener, reason=error)
