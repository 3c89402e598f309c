"""Encodes Arrow arrays to record batches, column by column. Pure: arrays in, bytes out.

`sink` calls `batches.encode`, `batches.batch_edges` and `murmur.partitions` (see `ports`) for each Arrow batch of rows.
`varints` writes many varints at once, `records` builds records, `batches` cuts them into batches.
"""
