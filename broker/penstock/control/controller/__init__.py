"""The elected controller: partition leaders, broker liveness, and replica placement."""
