"""Parts of the soak test."""
