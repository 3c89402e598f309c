"""What is to be done, kind by kind: pure functions from what is wanted and what is there to a `Plan`."""
