"""The engines of communication, alike to the bit."""
