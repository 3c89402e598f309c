"""Plants a known bug into the broker as it runs in this process, to see that the checker catches it.

The bugs are those of tests/faults: a line of the broker's source and what to write in its place. There a copy of the
source is changed; here the changed source is compiled, and functions get its code for as long as the bug is planted.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "faults"))

from penstock_faults.catalogue import FAULTS
from penstock_faults.planting import Fault, FaultError, mutated

BUGS: dict[str, Fault] = {fault.name: fault for fault in FAULTS}

CAUGHT = (
    "acknowledged-when-written",
    "fsync-skipped",
    "high-watermark-unflushed",
    "duplicate-answered-early",
    "duplicates-undetected",
    "producers-not-replayed",
    "snapshot-not-written",
    "commit-before-store",
    "directories-unsynced",
    "fsync-error-ignored",
    "torn-tail-kept",
    "partial-write-kept",
)
"""The bugs that the simulation claims to catch."""


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """The broker has the bug of that name meanwhile. Raises FaultError where it cannot be planted."""
    fault = BUGS[name]
    module = importlib.import_module("penstock." + fault.file.removesuffix(".py").replace("/", "."))
    changed = types.ModuleType(module.__name__)
    changed.__file__ = module.__file__
    changed.__package__ = module.__package__
    before = sys.modules[module.__name__]
    sys.modules[module.__name__] = changed  # dataclasses look for their module there
    try:
        exec(compile(mutated(fault), str(module.__file__), "exec"), changed.__dict__)
    finally:
        sys.modules[module.__name__] = before
    swapped: list[tuple[types.FunctionType, types.CodeType]] = []
    new = dict(functions(changed))
    for place, function in functions(module):
        other = new.get(place)
        if other is not None and differs(function.__code__, other.__code__):
            swapped.append((function, function.__code__))
            function.__code__ = other.__code__
    if not swapped:
        raise FaultError(f"{name}: no function of penstock/{fault.file} has the changed code")
    try:
        yield
    finally:
        for function, code in swapped:
            function.__code__ = code


def differs(a: types.CodeType, b: types.CodeType) -> bool:
    """Whether two functions do different things, wherever they stand in the file."""
    if a.co_code != b.co_code or a.co_names != b.co_names or len(a.co_consts) != len(b.co_consts):
        return True
    for x, y in zip(a.co_consts, b.co_consts, strict=True):
        if isinstance(x, types.CodeType):
            if not isinstance(y, types.CodeType) or differs(x, y):
                return True
        elif x != y:
            return True
    return False


def functions(module: types.ModuleType) -> Iterator[tuple[str, types.FunctionType]]:
    """The functions and methods that a module defines, by their place in it."""
    for name, value in vars(module).items():
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
            yield name, value
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for inner, member in vars(value).items():
                function = underlying(member)
                if function is not None:
                    yield f"{name}.{inner}", function


def underlying(member: Any) -> types.FunctionType | None:
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, (classmethod, staticmethod)):
        member = member.__func__
    return member if isinstance(member, types.FunctionType) else None
