"""Decodes record batches of the log to Arrow, column by column. Pure: bytes in, `RecordBatch`es out.

`source` feeds `decoder.RangeDecoder`. From the bottom up: `varints` reads many varints at once, `hops` finds the starts
of records, `sections` walks the batches of a response, `fields` splits records into fields, `gather` makes Arrow arrays
of them, `headers` does the same for headers.
"""
