"""Rolling restarts from the view of third-party clients. `make roll` runs it."""
