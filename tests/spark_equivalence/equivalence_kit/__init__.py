"""Parts of the comparison with Spark's own Kafka connector: cases, data, and the program that both run."""
