"""What the whole executor stands on: scalars and conversions, threads, streams, errors and the places they name."""
