"""Argument lists for every command of both programs, generated from the definitions of the commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from penstock_fuzz.values import bootstraps, numbers, texts


@dataclass(frozen=True)
class Command:
    """A command's path and its click parameters."""

    path: tuple[str, ...]
    parameters: tuple[Any, ...]


def commands(program: Any, path: tuple[str, ...] = ()) -> Iterator[Command]:
    """Return every command of a program that is not a group."""
    if not hasattr(program, "list_commands"):
        yield Command(path, tuple(program.params))
        return
    for name in program.list_commands(None):
        yield from commands(program.get_command(None, name), (*path, name))


def values_of(parameter: Any, files: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return values of a parameter: some valid, many invalid."""
    if parameter.name == "bootstrap":
        return bootstraps
    choices = getattr(parameter.type, "choices", None)
    if choices:
        return st.sampled_from(list(map(str, choices))) | texts
    if "int" in parameter.type.name or "float" in parameter.type.name:
        return st.integers(0, 10).map(str) | numbers.map(str) | texts
    if parameter.name in ("file", "paths", "job", "config", "data") or "file" in parameter.name:
        return files | files | texts
    return texts


@st.composite
def argument_lists(draw: st.DrawFn, command: Command, files: st.SearchStrategy[str]) -> list[str]:
    """Draw mostly the arguments that a command needs and some of its options; sometimes arbitrary ones."""
    found: list[str] = []
    for parameter in command.parameters:
        is_argument = type(parameter).__name__.endswith("Argument")
        if is_argument:
            if draw(st.integers(0, 9)):
                found.append(draw(values_of(parameter, files)))
            continue
        if draw(st.integers(0, 3)) > (2 if not parameter.required else 0):
            continue
        if not parameter.required and not draw(st.booleans()):
            continue
        option = draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts]))
        found.append(option)
        if not parameter.is_flag:
            found.append(draw(values_of(parameter, files)))
    if not draw(st.integers(0, 9)):
        found.insert(draw(st.integers(0, len(found))), draw(texts | st.just("--no-such-option")))
    return [argument.replace("\0", "") for argument in found]  # the system passes no NUL
