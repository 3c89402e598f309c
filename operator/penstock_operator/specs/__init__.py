"""Rendering of the Kubernetes objects of a cluster, as pure functions. `reconcile` decides when to apply them."""
