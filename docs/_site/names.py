"""Names in docstrings lead to where the site has them, or to their source."""

import functools
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import sources
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode


def _resolve(app: Sphinx, env: BuildEnvironment, node: Any, content: nodes.Element) -> nodes.Element | None:
    """A link for a name that the site has under another name, or not at all; for other names nothing."""
    if node.get("refdomain") != "py":
        return None
    for module, name in _places(node):
        found = _found(module, name)
        if found is None:
            continue
        domain = env.domains["py"]
        assert isinstance(domain, PythonDomain)
        for documented, entry in domain.objects.items():
            if not inspect.ismodule(found) and _of(documented) is found:
                return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, documented)
        href = sources.of_module(found) if inspect.ismodule(found) else sources.of_name(module, name)
        if href is not None:
            return nodes.reference("", "", content, refuri=href, internal=True)
        # Constants have no place of their own in a file: the module's is the nearest.
        href = sources.of_module(importlib.import_module(module))
        return nodes.reference("", "", content, refuri=href, internal=True) if module != "refopt" else content
    path = sources.ROOT.joinpath(*node["reftarget"].split("."))  # a module that needs what is not installed
    if path.with_suffix(".py").is_file():
        return nodes.reference("", "", content, refuri=sources.of_file(path.with_suffix(".py")), internal=True)
    return None


def _places(node: Any) -> Iterator[tuple[str, str]]:
    """Modules, each with the name in it that a reference may mean."""
    target = node["reftarget"].strip("()")
    own, of = node.get("py:module"), node.get("py:class")
    if not target.startswith("refopt") and own:
        yield own, target
        if of:
            yield own, f"{of}.{target}"
    full = target if target.startswith("refopt") else f"refopt.{target}"
    parts = full.split(".")
    for end in range(len(parts), 0, -1):
        yield ".".join(parts[:end]), ".".join(parts[end:])


@functools.cache
def _found(module: str, name: str) -> Any:
    """What a module has under a name, or the module itself; nothing if it is not there or not refopt's."""
    try:
        found = importlib.import_module(module)
        for part in filter(None, name.split(".")):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    of = found.__name__ if inspect.ismodule(found) else getattr(found, "__module__", None) or module
    return found if str(of).startswith("refopt") else None


@functools.cache
def _of(documented: str) -> Any:
    module, _, name = documented.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:  # of a class
        return None


def setup(app: Sphinx) -> dict[str, Any]:
    """Register it."""
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
