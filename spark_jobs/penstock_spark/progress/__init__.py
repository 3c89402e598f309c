"""Where streaming queries stand: the offsets in their checkpoints, published as committed offsets of groups."""
