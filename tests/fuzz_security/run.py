"""Fuzzes security: `python -m tests.fuzz_security.run --inputs 1000000`. A finding prints surface, seed and input."""

from __future__ import annotations

import argparse
import contextlib
import random
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from penstock_fuzz_security.mutations import Draws
from penstock_fuzz_security.surfaces import Surfaces

MAX_GROWTH_KIB = 64 << 10
"""Growth of the process that a run may cause after its first tenth."""
WARM = 10


class Finding(Exception):
    """A surface raised what it must not; the message has the seed and the input."""


def fuzz(inputs: int, seed: int, only: str | None = None) -> int:
    """Run inputs on all surfaces in turn, and return the growth of memory in KiB. Raises `Finding`.

    An input is determined by the seed, its surface and its number.
    """
    with contextlib.closing(Surfaces()) as surfaces:
        by_name = surfaces.by_name()
        chosen = list(by_name) if only is None else [only]
        warm_kib = 0
        for number in range(inputs):
            name = chosen[number % len(chosen)]
            if number == inputs // WARM:
                warm_kib = peak_kib()
            rng = Draws(f"{seed}/{name}/{number}")
            try:
                by_name[name](rng)
            except Exception as e:
                why = f"surface {name}, input {number} of seed {seed}: {e!r}"
                raise Finding(f"{why}\nin base64:\n{rng.described()}") from e
        return peak_kib() - warm_kib


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_security.run", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, help="repeats a run (default: a random one)")
    parser.add_argument("--only", help="one surface")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    growth_kib = fuzz(arguments.inputs, seed, arguments.only)
    took_s = time.monotonic() - began
    print(f"{arguments.inputs:,} inputs in {took_s:.0f} s; memory grew by {growth_kib >> 10} MiB after the first tenth")
    return 1 if growth_kib > MAX_GROWTH_KIB else 0


if __name__ == "__main__":
    sys.exit(main())
