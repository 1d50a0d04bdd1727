"""What programs need of a device: imported as a program is bound to its arrays."""
