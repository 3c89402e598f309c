"""Keeps of a log the last record of each key (KIP-58): what to clean, the worker that does it, and the swap."""
