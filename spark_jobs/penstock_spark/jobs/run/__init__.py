"""Runs jobs: session, batches, sinks, checkpoints and restarts."""
