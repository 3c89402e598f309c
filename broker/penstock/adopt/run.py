"""A move with the machine's own files and a real etcd: what the command line opens."""

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

__all__ = ["CannotAdopt", "EtcdUnreachable", "opened"]


class EtcdUnreachable(Exception):
    """etcd does not answer; how far the move came is then not known, and the same move finishes it."""


@asynccontextmanager
async def opened(options: UpOptions) -> AsyncIterator[Adoption]:
    """The move of `options.data_dir` into `options.etcd`. Raises CannotAdopt and EtcdAway, also from its block."""
    try:
        etcd = etcd_of(options)
    except StartError as e:
        raise CannotAdopt(str(e)) from e
    assert etcd is not None, "the command line asks for an etcd"
    source = AdoptionSource(OsFiles(), options.data_dir)
    store = EtcdStore(etcd)
    try:
        yield Adoption(source, store)
    except StoreUnavailable as e:
        raise EtcdUnreachable(f"{e}. Once etcd is there, run the same command again: it finishes what was begun") from e
    except StoreError as e:
        raise CannotAdopt(str(e)) from e
    finally:
        await store.close()
        source.close()
