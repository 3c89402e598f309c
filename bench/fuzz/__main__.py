"""`python -m bench.fuzz`: send mutated requests, a million by default."""

from __future__ import annotations

import random
import sys
from contextlib import nullcontext
from typing import Annotated

import typer

from bench.fuzz.attack import Outcome, attack
from bench.fuzz.broker import Broker, started
from bench.fuzz.canary import Unwell

PROGRESS_EVERY = 25


def main(
    count: Annotated[int, typer.Option(help="How many requests to send.")] = 1_000_000,
    seed: Annotated[int | None, typer.Option(help="Sends the same requests again; random unless given.")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="A running broker, HOST:PORT; else one is started.")] = None,
) -> None:
    """Send mutated requests of every API at every version. Fails if the broker stops serving a well-behaved client."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"seed {seed}", flush=True)
    with started() if bootstrap is None else nullcontext(None) as broker:
        host, port = (broker.host, broker.port) if broker else address(bootstrap or "")
        try:
            outcome = attack(host, port, count, seed, report)
        except Unwell as e:
            print(f"FAILED with seed {seed}: {e}", file=sys.stderr)
            if broker is not None:
                print(broker.tail(), file=sys.stderr)
            raise typer.Exit(1) from e
        summary(outcome, seed, broker)


def address(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.rpartition(":")
    if not host or not port.isdigit():
        raise typer.BadParameter(f"{bootstrap!r} is no HOST:PORT", param_hint="--bootstrap")
    return host, int(port)


def report(outcome: Outcome) -> None:
    if outcome.checks % PROGRESS_EVERY == 0:
        print(f"{outcome.requests:,} requests, {outcome.rate:,.0f}/s", flush=True)


def summary(outcome: Outcome, seed: int, broker: Broker | None) -> None:
    print(
        f"{outcome.requests:,} requests with seed {seed} on {outcome.connections:,} connections in "
        f"{outcome.seconds:.0f} s ({outcome.rate:,.0f}/s); the broker closed {outcome.closed_by_broker:,} of them; "
        f"a good client was served {outcome.checks:,} times in between"
    )
    if broker is not None:
        now, most = broker.status_kib("VmRSS") >> 10, broker.status_kib("VmHWM") >> 10
        print(f"the broker holds {now} MiB, at most {most} MiB")
        text = broker.log.read_text(errors="replace")
        errors = text.count("Traceback") + text.count('"level":"error"') + text.count('"level": "error"')
        print(f"errors in its log: {errors}")
        if errors:
            print(broker.tail())
            raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
