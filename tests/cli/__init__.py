"""The command ``refopt``, and the data of ``refopt verify``."""
