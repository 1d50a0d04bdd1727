"""The executor: its arithmetic, what it reports and what it lets pass, and the names of Numba's that it has."""
