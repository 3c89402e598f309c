"""The Kubernetes objects that a cluster consists of, as pure functions of its resource.

When they are written is decided in `reconcile`.
"""
