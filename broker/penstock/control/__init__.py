"""Topic lifecycle: the only writer of topics, partitions and their settings."""
