"""Topics, settings and cluster membership: the only writers of topics, partitions and their settings."""
