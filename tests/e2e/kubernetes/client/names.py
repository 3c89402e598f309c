"""Resolves names until standard input ends, then prints their addresses and errors as JSON.

names.py NAME...    {"NAME": ["10.96.0.7", ...], ...}; an error counts as an address. Runs where brokers' names resolve.
"""

from __future__ import annotations

import json
import socket
import sys
import threading

EVERY_S = 0.2


def resolve(name: str) -> str:
    """Return the address of a name, or the error."""
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        return str(error)


def main(names: list[str]) -> int:
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    found: dict[str, list[str]] = {name: [] for name in names}
    while not ended.wait(EVERY_S):
        for name, addresses in found.items():
            address = resolve(name)
            if address not in addresses:
                addresses.append(address)
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
