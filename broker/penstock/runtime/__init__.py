"""What the process stands on: clocks and files, handed in so that a simulation can replace them."""
