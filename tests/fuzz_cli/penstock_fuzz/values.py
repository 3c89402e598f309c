"""Values that users, scripts and accidents put into arguments, files and variables."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from penstock.config.addresses import InvalidAddress, parse_bootstrap
from penstock_fuzz.programs import DEAD

NASTY = [
    "", " ", "\0", "a\0b", "\udcff", "\ud800\udfff", "\x1b[2J", "\n", "\r\n", "\u202e", "\ufeff", "💥", "ü" * 300, "٣",
    "-", "--", "-1", "+1", "0", "00", "0x10", "1_000", "1.5", "1e5", "1e400", "nan", "inf", "-inf", "9" * 5_000,
    "2147483648", "9223372036854775807", "9223372036854775808", "99999999999999999999", "a" * 6_000, "=", "=x", "x=",
    "a=b=c", "retention.ms", "retention.ms=", "retention.ms=x", "cleanup.policy=", ",", ",,", "/dev/null",
    "~", "$HOME", "${env:HOME}", "${file:/dev/zero}", "${file:/nowhere:key}", "${env:}", "${file:", "%s", "{0}",
    "{", "}", "[]", "{}", "null", "true", "~", "!!bool x", "!!int ''", "!!timestamp x", "&a [*a]", "*a", "<<",
    "2026-13-01", "2026-01-31T10:00:00Z", "0001-01-01", "9999-12-31T23:59:59.999999-23:59", "-90m", "-999999999999d",
    "-1.5h", "10 seconds", "64 MiB", "99999999999999999 GiB",
]  # fmt: skip
ADDRESSES = [
    "::1", "::1:9092", "[::1]:9092", "[::1", "[]:1", "[::1%]:1", "h:9092", "h:0", "h:65536", "h:-1", "h:٣", ":9092",
    "a:1;b:2", "a:1,,b:2,", "PLAINTEXT://h:1", "SSL://h:1", "http://h:1", "http://h", "https://[::1", "://h:1",
    "A://h:1,A://h:1", "A://0.0.0.0:1", "A:// :1", "a..b:1", "\udcff:1", "a" * 300 + ":1", "http://u:p@h:1",
]  # fmt: skip

numbers = st.integers(-(2**70), 2**70) | st.floats() | st.integers(-3, 3)
anything = st.text(max_size=12) | st.text(st.characters(), max_size=6)  # the second includes lone surrogates
words = st.sampled_from(NASTY) | st.sampled_from(ADDRESSES) | anything | numbers.map(str)
pairs = st.tuples(
    st.sampled_from(["retention.ms", "num.partitions", "listeners", "advertised.listeners", "x"]) | words, words
).map("=".join)
texts = words | pairs


def is_dead(text: str) -> bool:
    """Whether the address is invalid, so that no server is contacted."""
    try:
        parse_bootstrap(text, has_tls=True, has_sasl=True)
    except InvalidAddress:
        return True
    return False


bootstraps = texts.map(lambda text: text if is_dead(text) else DEAD)
"""Bootstrap servers that cause no name lookup: a valid one is replaced by an address without a listener."""


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return nested lists and mappings of values."""
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=6
    )
