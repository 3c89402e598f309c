"""References to secrets in a job's file, spelled as Kafka's own config providers have them.

`${env:NAME}` is a variable of the environment, `${file:/path}` a file's text without the newline at its end,
`${file:/path:key}` a value of a properties file. They may stand anywhere in the texts of options and storage, and are
resolved by `document` when the job is to run. What is resolved is not looked at again, and is in no message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

import msgspec

MAX_FILE_BYTES = 64 << 10
"""A file of more is no secret."""
PROVIDERS = ("env", "file")
_REFERENCE = re.compile(r"\$\{([A-Za-z][A-Za-z0-9_-]*):([^{}]*)\}")
_BEGUN = re.compile(r"\$\{(?:env|file):")
EXAMPLES = "${env:NAME}, ${file:/path} or ${file:/path:key}"


class Handling(Enum):
    """What becomes of references in the texts of a field whose type carries it. In other texts they are refused."""

    RESOLVED = "resolved"
    AS_WRITTEN = "as written"


T = TypeVar("T")
Resolved = Annotated[T, Handling.RESOLVED]
AsWritten = Annotated[T, Handling.AS_WRITTEN]


class Reference(NamedTuple):
    provider: str
    path: str
    """A variable's name, or a file's."""
    key: str | None = None

    def __str__(self) -> str:
        return f"${{{self.provider}:{self.path}{'' if self.key is None else f':{self.key}'}}}"


def handling_of(wanted: Any) -> Handling | None:
    """What a type says of references."""
    return next((m for m in getattr(wanted, "__metadata__", ()) if isinstance(m, Handling)), None)


def has(text: str) -> bool:
    """Whether somebody meant a text to hold a reference."""
    return _BEGUN.search(text) is not None


def references(text: str) -> Iterator[Reference]:
    """In the order of the text. Raises `ValueError` where one cannot be meant so."""
    for found in _REFERENCE.finditer(text):
        yield _reference(found)
    if has(_REFERENCE.sub("", text)):
        raise ValueError(f"a reference does not end, or has braces within: write {EXAMPLES}")


def check(text: str) -> None:
    """Raises `ValueError` where a reference cannot be meant so."""
    for _ in references(text):
        pass


def _reference(found: re.Match[str]) -> Reference:
    provider, rest = found[1], found[2]
    if provider not in PROVIDERS:
        raise ValueError(f"there is no provider {provider!r}: write {EXAMPLES}")
    path, colon, key = rest.partition(":") if provider == "file" else (rest, "", "")
    if not path or (colon and not key):
        raise ValueError(f"a reference to {provider} names nothing: write {EXAMPLES}")
    return Reference(provider, path, key if colon else None)


def of_job(part: object) -> list[str]:
    """The references of a job that was not resolved, each once."""
    return list(dict.fromkeys(map(str, _of_part(part))))


def _of_part(part: object) -> Iterator[Reference]:
    if not isinstance(part, msgspec.Struct):
        return
    for field in msgspec.structs.fields(part):
        value = getattr(part, field.name)
        if isinstance(value, dict) and handling_of(get_args(field.type)[1]) is Handling.RESOLVED:
            for text in value.values():
                yield from references(text) if isinstance(text, str) else ()
        else:
            yield from _of_part(value)


class Resolver:
    """Puts in what references name. Each file is read once, so that all that comes out of it is of one moment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._files: dict[str, str] = {}

    def resolve(self, text: str) -> str:
        """Raises `ValueError`, which names the variable or the file and never what it holds."""
        check(text)
        return _REFERENCE.sub(lambda found: self._value(_reference(found)), text)

    def _value(self, reference: Reference) -> str:
        if reference.provider == "env":
            return self._variable(reference.path)
        text = self._file(reference.path)
        if reference.key is None:
            return re.sub(r"\r?\n\Z", "", text)
        value = properties(text).get(reference.key)
        if value is None:
            raise ValueError(f"the file {reference.path} has no line {reference.key}=...")
        return value

    def _variable(self, name: str) -> str:
        value = self._environment.get(name)
        if value is None:
            raise ValueError(f"the environment has no variable {name}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the variable {name} of the environment is not UTF-8") from None
        return value

    def _file(self, path: str) -> str:
        if path not in self._files:
            self._files[path] = read(Path(path))
        return self._files[path]


def read(path: Path) -> str:
    """Raises `ValueError`, naming the file."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"the file {path} has more than {MAX_FILE_BYTES:,} bytes: this is no secret")
        return data.decode()
    except OSError as e:
        raise ValueError(f"the file {path} cannot be read: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise ValueError(f"the file {path} is not UTF-8: byte {e.start}") from None


_LINE = re.compile(r"((?:\\.|[^\\:=\s])*)(?:\s*[:=]\s*|\s+|$)(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def properties(text: str) -> dict[str, str]:
    """As `java.util.Properties` reads text: comments, continued lines, escapes."""
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
    def meant(escape: re.Match[str]) -> str:
        what = escape[1]
        return chr(int(what[1:], 16)) if len(what) > 1 else _ESCAPES.get(what, what)

    return _ESCAPE.sub(meant, text)
