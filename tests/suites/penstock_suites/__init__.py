"""Runs the test suites of client authors against brokers; `tests/suites/run.py` is the command."""
