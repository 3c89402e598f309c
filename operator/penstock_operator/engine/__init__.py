"""What makes it go: events into a queue, batches out of it, retries, leadership, health."""
