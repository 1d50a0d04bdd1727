"""The oracle: what it finds, what it says, and what it lets pass."""
