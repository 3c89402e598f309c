"""Typed models of the custom resources, one module per kind. No I/O."""
