"""One module for each suite: its sources, the cluster it expects, and how to run it."""
