"""Write what is generated again: ``python -m maps``, with tests/ on the path."""

from maps import (
    api,
    architecture,
    commands,
    evidence,
    finds,
    interface,
    names,
    non_finite,
    specification,
    stubs,
    variants,
)
from maps.collect import suite

if __name__ == "__main__":
    architecture.write()
    stubs.write()
    for path, text in api.pages().items():
        path.write_text(text)
    items = suite()
    for module in (evidence, specification, non_finite, interface, variants, names, finds, commands):
        module.PAGE.write_text(module.page(items))
        print(f"{module.PAGE.name}: {len(items)} tests collected")
