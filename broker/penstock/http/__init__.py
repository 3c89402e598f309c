"""The HTTP server: health, readiness and Prometheus metrics."""
