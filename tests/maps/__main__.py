"""Write the maps of the tests again: ``python -m maps``, with tests/ on the path."""

from maps import (
    api,
    architecture,
    commands,
    evidence,
    finds,
    interface,
    kernels,
    names,
    non_finite,
    specification,
    variants,
)  # fmt: skip
from maps.collect import suite

if __name__ == "__main__":
    architecture.write()
    kernels.write()
    for path, text in api.pages().items():
        path.write_text(text)
    items = suite()
    for module in (evidence, specification, non_finite, interface, variants, names, finds, commands):
        module.PAGE.write_text(module.page(items))
        print(f"{module.PAGE.name}: {len(items)} tests collected")
