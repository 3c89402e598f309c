"""Faults planted on purpose: each takes a promise of the broker away, and a test must notice."""
