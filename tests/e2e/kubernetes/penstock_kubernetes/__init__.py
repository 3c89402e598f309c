"""Helpers of the tests on a Kubernetes cluster: kubectl, Helm releases, and third-party clients."""
