"""What users say in `.option(...)`, as typed values; under the names that Spark's own Kafka connector has. Pure."""
