"""Creates keys and certificates: the operator's CA, and certificates that it issues."""
