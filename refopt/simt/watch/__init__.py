"""What an observed launch records: counts, races, reads of what nobody wrote, and floating-point events."""
