"""The `Topic` controller: observes in batches, plans each topic with `reconcile.topic`, executes in few requests."""
