"""One partition on disk: segments, indexes, recovery, flush, retention, compaction. Knows no network and no peers."""
