"""The controller of `Cluster` objects: looks, has `reconcile.cluster` decide, and carries out."""
