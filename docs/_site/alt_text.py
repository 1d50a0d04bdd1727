"""Figures of notebooks keep their alt text, which MyST-NB looks for in a cell's metadata and not in the output's."""

from myst_nb.core.render import NbElementRenderer
from sphinx.application import Sphinx

_render = NbElementRenderer.render_image


def _with_alt(self, data):
    nodes = _render(self, data)
    if alt := (data.output_metadata or {}).get(data.mime_type, {}).get("alt"):
        nodes[0]["alt"] = alt
    return nodes


def setup(app: Sphinx) -> dict[str, bool]:
    NbElementRenderer.render_image = _with_alt
    return {"parallel_read_safe": True, "parallel_write_safe": True}
