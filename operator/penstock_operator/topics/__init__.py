"""The controller of `Topic`: observes many at once, plans each with `reconcile.topic`, carries out in few requests."""
