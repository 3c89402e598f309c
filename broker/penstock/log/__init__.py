"""One partition on disk: segments, indexes, recovery, flush, retention and compaction. No network access.

`partition_log` appends and `reading` reads; `segment` and `index` are the files, `flusher` syncs them, `checkpoint` and
`recovery` open them after a crash. `retention`, `compaction` and `truncation` remove batches. `log_dir` is the data
directory with all partitions of a broker.
"""
