"""References to secrets in a job file, in the syntax of Kafka's config providers.

`${env:NAME}` is an environment variable, `${file:/path}` a file's text without its final newline, `${file:/path:key}` a
value of a properties file. They may occur anywhere in the texts of options and storage. `document` resolves them when
the job is run. Resolved text is not searched again for references, and never appears in messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

import msgspec

from penstock.config.addresses import quoted

MAX_FILE_BYTES = 64 << 10
"""Maximum size of a file with a secret."""
PROVIDERS = ("env", "file")
_REFERENCE = re.compile(r"\$\{([A-Za-z][A-Za-z0-9_-]*):([^{}]*)\}")
_REFERENCE_START = re.compile(r"\$\{(?:env|file):")
EXAMPLES = "${env:NAME}, ${file:/path} or ${file:/path:key}"


class ReferenceHandling(Enum):
    """How references in a field are handled; part of the field's type. Fields without it reject references."""

    RESOLVED = "resolved"
    AS_WRITTEN = "as written"


T = TypeVar("T")
Resolved = Annotated[T, ReferenceHandling.RESOLVED]
AsWritten = Annotated[T, ReferenceHandling.AS_WRITTEN]


class Reference(NamedTuple):
    """A parsed reference."""

    provider: str
    path: str
    """Name of the variable, or path of the file."""
    key: str | None = None

    def __str__(self) -> str:
        return f"${{{self.provider}:{self.path}{'' if self.key is None else f':{self.key}'}}}"


def handling_of(field_type: Any) -> ReferenceHandling | None:
    """Return how a type handles references; None if it rejects them."""
    return next((m for m in getattr(field_type, "__metadata__", ()) if isinstance(m, ReferenceHandling)), None)


def has_reference(text: str) -> bool:
    """Return whether a text contains the start of a reference."""
    return _REFERENCE_START.search(text) is not None


def references(text: str) -> Iterator[Reference]:
    """Yield references in text order. Raises `ValueError` for a malformed one."""
    for found in _REFERENCE.finditer(text):
        yield _reference(found)
    if has_reference(_REFERENCE.sub("", text)):
        raise ValueError(f"malformed reference: it has no end, or braces inside; write {EXAMPLES}")


def check_references(text: str) -> None:
    """Raise `ValueError` for a malformed reference."""
    for _ in references(text):
        pass


def _reference(found: re.Match[str]) -> Reference:
    provider, rest = found[1], found[2]
    if provider not in PROVIDERS:
        raise ValueError(f"unknown provider {quoted(provider)}; write {EXAMPLES}")
    path, colon, key = rest.partition(":") if provider == "file" else (rest, "", "")
    if not path or (colon and not key):
        raise ValueError(f"a reference to {provider} is empty; write {EXAMPLES}")
    return Reference(provider, path, key if colon else None)


def job_references(part: object) -> list[str]:
    """Return the unresolved references of a job, each once."""
    return list(dict.fromkeys(map(str, _references_in(part))))


def _references_in(part: object) -> Iterator[Reference]:
    if not isinstance(part, msgspec.Struct):
        return
    for field in msgspec.structs.fields(part):
        value = getattr(part, field.name)
        if isinstance(value, dict) and handling_of(get_args(field.type)[1]) is ReferenceHandling.RESOLVED:
            for text in value.values():
                yield from references(text) if isinstance(text, str) else ()
        else:
            yield from _references_in(value)


class Resolver:
    """Replaces references by their values. Each file is read once, so that its values are consistent."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._files: dict[str, str] = {}

    def resolve(self, text: str) -> str:
        """Return the text with values. Raises `ValueError` with the name of the variable or file, never its content."""
        check_references(text)
        return _REFERENCE.sub(lambda found: self._value(_reference(found)), text)

    def _value(self, reference: Reference) -> str:
        if reference.provider == "env":
            return self._variable(reference.path)
        text = self._file(reference.path)
        if reference.key is None:
            return re.sub(r"\r?\n\Z", "", text)
        value = properties(text).get(reference.key)
        if value is None:
            raise ValueError(f'the file "{reference.path}" has no key {quoted(reference.key)}; add it')
        return value

    def _variable(self, name: str) -> str:
        value = self._environment.get(name)
        if value is None:
            raise ValueError(f"the environment variable {quoted(name)} is not set")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the environment variable {quoted(name)} is not UTF-8") from None
        return value

    def _file(self, path: str) -> str:
        if path not in self._files:
            self._files[path] = read(Path(path))
        return self._files[path]


def read(path: Path) -> str:
    """Return a file's text. Raises `ValueError` with its path."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f'the file "{path}" is larger than {MAX_FILE_BYTES:,} bytes')
        return data.decode()
    except OSError as e:
        raise ValueError(f'cannot read the file "{path}": {e.strerror}') from None
    except UnicodeDecodeError as e:
        raise ValueError(f'the file "{path}" is not UTF-8: byte {e.start}') from None


_LINE = re.compile(r"((?:\\.|[^\\:=\s])*)(?:\s*[:=]\s*|\s+|$)(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def properties(text: str) -> dict[str, str]:
    """Parse text as `java.util.Properties` does: comments, continuation lines, escapes."""
    found: dict[str, str] = {}
    before = ""
    for line in re.split(r"\r\n|\r|\n", text):
        whole = before + line.lstrip(" \t\f")
        if not before and whole[:1] in ("", "#", "!"):
            continue
        if (len(whole) - len(whole.rstrip("\\"))) % 2:
            before = whole[:-1]
            continue
        before = ""
        _put(found, whole)
    if before:
        _put(found, before)
    return found


def _put(found: dict[str, str], line: str) -> None:
    if matched := _LINE.fullmatch(line):
        found[_unescaped(matched[1])] = _unescaped(matched[2])


def _unescaped(text: str) -> str:
    def replacement(escape: re.Match[str]) -> str:
        code = escape[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)

    return _ESCAPE.sub(replacement, text)
