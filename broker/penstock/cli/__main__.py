"""Runs `penstock` with `python -m penstock.cli`."""

from penstock.cli import main

main()
