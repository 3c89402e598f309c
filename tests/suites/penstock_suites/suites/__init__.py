"""One module for each suite: where its sources are, which cluster it expects, and how it is run."""
