"""Implementation of `ports.kube`. It uses the `kubernetes` package only for the connection; objects are plain JSON."""
