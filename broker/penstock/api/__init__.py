"""Requests to the rooms below, and back: one module for each API family."""
