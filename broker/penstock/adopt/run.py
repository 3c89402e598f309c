"""Opens an adoption with files on disk and a real etcd, for the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.adopt.move import Adoption
from penstock.adopt.source import AdoptionSource, CannotAdopt
from penstock.config.options import UpOptions
from penstock.node.settings import StartError, etcd_of
from penstock.runtime.disk import OsFiles
from penstock.state.etcd.store import EtcdStore
from penstock.state.store import StoreError, StoreUnavailable

__all__ = ["CannotAdopt", "EtcdUnreachable", "open_adoption"]


class EtcdUnreachable(Exception):
    """etcd does not respond; the progress of the move is unknown, and the same command finishes it."""


@asynccontextmanager
async def open_adoption(options: UpOptions) -> AsyncIterator[Adoption]:
    """Yield the adoption of `options.data_dir` into `options.etcd`.

    Raises CannotAdopt and EtcdUnreachable, also from its block.
    """
    try:
        etcd = etcd_of(options)
    except StartError as e:
        raise CannotAdopt(str(e)) from e
    assert etcd is not None, "the command line requires an etcd"
    source = AdoptionSource(OsFiles(), options.data_dir)
    store = EtcdStore(etcd)
    try:
        yield Adoption(source, store)
    except StoreUnavailable as e:
        raise EtcdUnreachable(f"{e}; once etcd is available, run the same command again to finish the move") from e
    except StoreError as e:
        raise CannotAdopt(str(e)) from e
    finally:
        await store.close()
        source.close()
