"""The device parts of programs, imported when a program is bound to device arrays."""
