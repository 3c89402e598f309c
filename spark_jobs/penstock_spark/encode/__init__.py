"""From Arrow to record batches, a column at a time. Pure: arrays go in, bytes come out.

`batches.encode`, `batches.batch_edges` and `murmur.partitions` are the doors (see `ports`); `sink` calls them for each
Arrow batch of rows.
Inside, `varints` writes many varints at once, `records` puts rows together, `batches` cuts them into batches.
"""
