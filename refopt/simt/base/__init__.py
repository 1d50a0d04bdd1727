"""The basis of the executor: scalars and conversions, threads, streams, errors and source locations."""
