"""Inputs for both command lines, and how each call ended."""
