"""Values shared by all packages: offset ranges, columns of records, errors. No I/O, no Spark."""
