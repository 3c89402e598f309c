"""The `User` controller: observes in batches, plans each user with `reconcile.user`, executes by part."""
