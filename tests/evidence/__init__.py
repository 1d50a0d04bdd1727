"""What the reference is held to beside its own code."""
