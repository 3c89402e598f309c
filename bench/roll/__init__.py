"""Rolling restarts as clients of other authors see them. `make roll` runs it."""
