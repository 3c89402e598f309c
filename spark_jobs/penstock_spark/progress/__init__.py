"""Publishes the progress of streaming queries: commits the offsets of their checkpoints for consumer groups."""
