"""The `Cluster` controller: observes, plans with `reconcile.cluster`, executes the actions."""
