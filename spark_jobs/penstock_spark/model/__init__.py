"""What the rooms hand to one another: ranges of offsets, columns of records, errors. No I/O, no Spark."""
