"""Write the stub notebooks and the index again: ``python -m exercise``, in notebooks/exercises."""

from .generate import write

if __name__ == "__main__":
    write()
