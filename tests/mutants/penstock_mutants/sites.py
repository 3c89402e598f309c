"""The places of a module where a mutation can change behaviour, and the mutated source.

Mutations come from mutmut's operators. Annotations, log calls, assertions and `__slots__` are excluded: no test could
observe a change there.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence
from dataclasses import dataclass

import libcst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

UNUSED = {
    mutators.operator_string,
    mutators.operator_dict_arguments,
    mutators.operator_arg_removal,
    mutators.operator_assignment,
}
"""Operators whose mutants change only texts, or fail at the first use, so that they do not measure the tests."""
LOGGING = {"debug", "info", "warning", "error", "exception"}


@dataclass(frozen=True)
class Site:
    """A node of a module's syntax tree, and its possible replacements."""

    file: str
    line: int
    column: int
    node: libcst.CSTNode
    replacements: Sequence[libcst.CSTNode]


@dataclass(frozen=True)
class Mutation:
    """One change of one file, with the whole mutated source."""

    file: str
    line: int
    before: str
    """Return the first line that differs, without indentation."""
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}\n    - {self.before}\n    + {self.after}"


def ignored_lines(source: str) -> set[int]:
    """Return the lines of signatures, log calls, assertions, imports, `__slots__` and fields without a value."""
    ignored: set[int] = set()

    def ignore(node: ast.AST) -> None:
        ignored.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]

    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=attr)) if attr in LOGGING:
                ignore(node)
            case ast.Assert():
                ignore(node)
            case ast.Assign(targets=[ast.Name(id="__slots__")]) | ast.Import() | ast.ImportFrom():
                ignore(node)
            case ast.AnnAssign(value=None):
                ignore(node)
            case ast.ClassDef(decorator_list=decorators):
                for decorator in decorators:
                    ignore(decorator)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                ignored.update(range(node.lineno, node.body[0].lineno))
    return ignored


def constant_lines(source: str) -> set[int]:
    """Return the lines of module constants. Their numbers are choices, such as timeouts, that no test should repeat."""
    return {
        line
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def sites(file: str, source: str) -> tuple[libcst.Module, list[Site]]:
    """Return the module's syntax tree and its sites in the order of the source."""
    wrapper = MetadataWrapper(libcst.parse_module(source))
    ranges = wrapper.resolve(PositionProvider)
    ignored = ignored_lines(source) | constant_lines(source)
    found = []
    for node, place in ranges.items():
        if not isinstance(place, CodeRange) or place.start.line in ignored:
            continue
        replacements = [
            replacement
            for kind, operator in mutators.mutation_operators
            if isinstance(node, kind) and operator not in UNUSED
            for replacement in operator(node)
        ]
        if replacements:
            found.append(Site(file, place.start.line, place.start.column, node, replacements))
    return wrapper.module, sorted(found, key=lambda site: (site.line, site.column, type(site.node).__name__))


def sample(modules: dict[str, str], count: int, seed: str) -> list[Mutation]:
    """Return `count` mutations at different places, chosen by `seed`, of modules (source by path)."""
    chance = random.Random(seed)
    trees: dict[str, libcst.Module] = {}
    everywhere: list[Site] = []
    for file in sorted(modules):
        trees[file], found = sites(file, modules[file])
        everywhere += found
    chosen = chance.sample(everywhere, min(count, len(everywhere)))
    return [mutation(trees[site.file], site, chance.choice(site.replacements)) for site in chosen]


def mutation(tree: libcst.Module, site: Site, replacement: libcst.CSTNode) -> Mutation:
    """Return the mutation of a site."""
    changed = tree.deep_replace(site.node, replacement)
    assert isinstance(changed, libcst.Module), "a replaced node is not the module"
    before, after = tree.code, changed.code
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    first, second = next(((a.strip(), b.strip()) for a, b in pairs if a != b), ("", ""))
    return Mutation(site.file, site.line, first, second, after)
