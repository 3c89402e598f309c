"""`kubectl penstock`: a kubectl plugin that reads and annotates Penstock's resources."""
