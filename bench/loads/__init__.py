"""Loads of one timed section. Each load runs in a separate client process."""
