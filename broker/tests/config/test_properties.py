"""Client properties files: Java's format."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.properties import MAX_FILE_BYTES, InvalidProperties, escape, parse_properties, read_properties


def parsed(text: str) -> dict[str, str]:
    return {p.name: p.value for p in parse_properties(text, "f")}


@pytest.mark.parametrize(
    "text",
    ["a.b=c d", "a.b = c d", "  a.b:c d", "a.b c d", "a.b\tc d", "\ufeffa.b=c d".lstrip("\ufeff"), "a.b=c \\\n   d"],
)
def test_names_and_values_are_separated_as_in_java(text: str) -> None:
    assert parsed(text) == {"a.b": "c d"}


def test_comments_and_empty_lines_are_skipped() -> None:
    assert parsed("# a=1\r\n\r\n  ! b=2\r\nc=3\rd=4\n") == {"c": "3", "d": "4"}


def test_escapes_are_resolved() -> None:
    assert parsed("a\\=b=x\\ty\\nz\\u00e9\\\\n\\q") == {"a=b": "x\ty\nz\u00e9\\nq"}


def test_a_line_goes_on_after_an_odd_number_of_backslashes() -> None:
    assert parsed("a=1\\\\\nb=2\\\\\\\n  3\nc=4\\") == {"a": "1\\", "b": "2\\3", "c": "4"}


def test_the_last_value_of_a_name_counts_and_its_line_is_known() -> None:
    assert [(p.value, p.place) for p in parse_properties("a=1\n\n# x\na=2\\\n3", "f")] == [("23", "f, line 4")]


def test_values_may_have_separators_and_be_empty() -> None:
    assert parsed("a=x=y:z\nb=\nc") == {"a": "x=y:z", "b": "", "c": ""}


def test_a_property_without_a_name_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidProperties, match="f, line 2: a property has no name; use NAME=VALUE"):
        parse_properties("a=1\n=secret", "f")


@given(st.text())
def test_what_is_escaped_is_parsed_as_the_same(value: str) -> None:
    assert parsed(f"a={escape(value)}") == {"a": value}


@given(content=st.binary(max_size=200) | st.text("ab=: \\\n\r#!u0\ufeff\ud7ff", max_size=60).map(str.encode))
def test_any_file_is_parsed_or_refused_in_one_line(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.properties"
    path.write_bytes(content)
    try:
        why = "" if read_properties(str(path)) is not None else "nothing"
    except InvalidProperties as e:
        why = str(e).replace(str(path), "", 1)
    assert why == "" or (why.startswith(", line ") and "\n" not in why)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory; set the path of a readable file"),
        (b"a=1\nb=\xff\n", "f.properties, line 2: the text is not UTF-8; encode it as UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), "is larger than 1,048,576 bytes; shorten it"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "f.properties"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidProperties) as caught:
        read_properties(str(path))
    assert why in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_path_that_no_system_accepts_is_refused() -> None:
    for path in ("a\0b", "\udcff", "x" * 5000):
        with pytest.raises(InvalidProperties, match="cannot read properties file"):
            read_properties(path)


def test_a_byte_order_mark_is_skipped_and_values_are_in_no_representation(tmp_path: Path) -> None:
    path = tmp_path / "f.properties"
    path.write_bytes(b"\xef\xbb\xbfsasl.password=topsecret")
    (found,) = read_properties(str(path))
    assert found.name == "sasl.password"
    assert "topsecret" not in repr(found)
