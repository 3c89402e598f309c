"""Process services that a simulation can replace: clocks and files; also logging, counters and Linux system calls."""
