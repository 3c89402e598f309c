"""Filters of records: expressions over headers, key and timestamp. Used by share groups, Fetch, and the client."""

from penstock.filter.lexer import MAX_FILTER_CHARS, FilterError
from penstock.filter.record_filter import RecordFilter, compile_filter

__all__ = ["MAX_FILTER_CHARS", "FilterError", "RecordFilter", "compile_filter"]
