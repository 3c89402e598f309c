"""From batches as they stand in the log to Arrow, a column at a time. Pure: bytes go in, `RecordBatch`es come out.

`decoder.RangeDecoder` is the door; `source` feeds it. Inside, from the bottom up: `varints` reads many varints at
once, `hops` finds where records begin, `sections` walks the batches of an answer, `fields` takes records apart,
`gather` makes Arrow arrays of them, `headers` does so for headers.
"""
