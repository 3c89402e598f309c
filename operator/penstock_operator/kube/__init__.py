"""Kubernetes: `ports.kube` on the official client."""
