"""Log compaction (KIP-58): keeps the last record of each key. Planning, worker process, and segment swap."""
