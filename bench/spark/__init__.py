"""Spark with Penstock's data source beside Spark with its own Kafka connector: sessions in processes of their own."""
