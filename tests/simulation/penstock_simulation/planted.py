"""Plants a known bug into the broker in this process, to verify that the checker detects it.

The bugs of a single broker are those of tests/faults: a line of the broker's source and its replacement. tests/faults
changes a copy of the source; this module compiles the changed source and gives its code to the functions while the bug
is planted. Cluster bugs are in `cluster_bugs`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "faults"))

from penstock_faults.catalogue import FAULTS
from penstock_faults.planting import FaultError

import penstock

RUNNING = Path(penstock.__file__).parent
"""The imported package."""


@dataclass(frozen=True)
class Edit:
    """A text that occurs once in a file below broker/penstock, and its replacement."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    """The broker's incorrect behaviour (`says`), and the edits that cause it."""

    name: str
    says: str
    edits: tuple[Edit, ...]


class Hunt(NamedTuple):
    """The faults and workloads under which a bug shows quickly."""

    kinds: tuple[str, ...]
    features: tuple[str, ...] = ()


def one_edit(name: str, says: str, file: str, old: str, new: str) -> Bug:
    """Return a bug with a single edit."""
    return Bug(name, says, (Edit(file, old, new),))


BUGS: dict[str, Bug] = {
    fault.name: Bug(fault.name, fault.says, (Edit(fault.file, fault.old, fault.new),)) for fault in FAULTS
}
"""Bugs of a single broker."""

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
"""The bugs that the simulation must detect."""


@contextlib.contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Plant the bug in the broker during the block. Raises FaultError if it does not fit the source."""
    with contextlib.ExitStack() as stack:
        for file in dict.fromkeys(edit.file for edit in bug.edits):
            stack.enter_context(changed_file(bug, file))
        yield


def changed_text(bug: Bug, file: str) -> str:
    """Return the file's text with the bug."""
    text = (RUNNING / file).read_text()
    for edit in bug.edits:
        if edit.file == file:
            if (count := text.count(edit.old)) != 1:
                raise FaultError(f"{bug.name}: the text to replace stands {count} times in broker/penstock/{file}")
            text = text.replace(edit.old, edit.new)
    return text


@contextlib.contextmanager
def changed_file(bug: Bug, file: str) -> Iterator[None]:
    module = importlib.import_module(module_name(file))
    changed = types.ModuleType(module.__name__)
    changed.__file__ = module.__file__
    changed.__package__ = module.__package__
    before = sys.modules[module.__name__]
    sys.modules[module.__name__] = changed  # dataclasses look up their module there
    try:
        exec(compile(changed_text(bug, file), str(module.__file__), "exec"), changed.__dict__)
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
        raise FaultError(f"{bug.name}: no function of penstock/{file} has the changed code")
    try:
        yield
    finally:
        for function, code in swapped:
            function.__code__ = code


def module_name(file: str) -> str:
    return "penstock." + file.removesuffix(".py").replace("/", ".")


def differs(a: types.CodeType, b: types.CodeType) -> bool:
    """Whether two code objects behave differently, regardless of their position in the file."""
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
    """Return the functions and methods that a module defines, by qualified name."""
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
