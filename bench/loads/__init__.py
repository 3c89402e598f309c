"""What a client does inside one timed section.  Each load runs in a client process of its own."""
