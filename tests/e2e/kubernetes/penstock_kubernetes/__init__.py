"""What the tests against a Kubernetes cluster are written in: kubectl, helm, and other people's clients."""
