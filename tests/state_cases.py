"""Changes of state dictionaries, for tests of what is refused."""

import numpy as np


def put(value, *path):
    """A change of what a dictionary has at some place."""

    def change(saved):
        for key in path[:-1]:
            saved = saved[key]
        saved[path[-1]] = value

    return change


def array(value, dtype="f4"):
    return np.array(value, dtype)
