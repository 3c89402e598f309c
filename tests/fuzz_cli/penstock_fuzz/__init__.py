"""Inputs for both command lines, and the outcomes of calls."""
