"""The elected controller: who leads, who counts as alive, and where replicas go."""
