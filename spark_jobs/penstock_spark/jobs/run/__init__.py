"""Running a job: batches, sinks, checkpoints and restarts."""
