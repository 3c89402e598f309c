"""Feeds a broker what no client would send, and checks that it goes on serving: `python -m bench.fuzz --help`."""
