"""What the comparison with Spark's own Kafka connector is made of: cases, data, and the program that both run."""
