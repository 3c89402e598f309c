"""One partition on disk: segments, indexes, recovery, flush, retention and compaction. No network access."""
