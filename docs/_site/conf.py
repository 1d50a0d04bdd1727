"""The site: the pages of docs/ and the notebooks as they are stored, from the root of the repository."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

from sphinx.ext.autodoc.mock import _MockObject  # noqa: E402

import refopt  # noqa: E402

# In annotations of refopt.torch, which are evaluated: Tensor | None, of a Tensor that is mocked.
_MockObject.__or__ = _MockObject.__ror__ = lambda self, other: self
_MockObject.__int__ = lambda self: 0

project = "refopt"
author = "refopt"
release = version = refopt.__version__
root_doc = "docs/index"
include_patterns = ["docs/*.md", "docs/reports/**.md", "notebooks/*.ipynb", "notebooks/exercises/*", "CONTRIBUTING.md",
                    "CHANGELOG.md"]
exclude_patterns = [".*", "build", "dist", "refopt", "tests", "benchmarks", "docs/_site", "**/__pycache__"]
extensions = [
    "myst_nb",
    "alt_text",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.linkcode",
    "sphinx_copybutton",
    "mathml",
    "names",
    "notebook_list",
    "pages",
    "sources",
]
nitpicky = True
suppress_warnings = ["ref.python"]  # an attribute of one name in two classes, in a type of a docstring
# The site is built offline: names of other projects have nowhere to lead.
nitpick_ignore_regex = [("py:.*", r"(?!refopt\.).*")]

nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath", "html_image"]
myst_heading_anchors = 4

napoleon_use_ivar = True
autodoc_mock_imports = ["cuda", "mpi4py", "nccl", "pytest", "torch"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
default_role = "py:obj"  # `name` in a docstring: a link where the site has the name, else code
maximum_signature_line_length = 100
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "refopt"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_math_renderer = "mathml"
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_exclude = ".linenos, .gp, .go"


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """The page of a name's source, from a page of docs/."""
    from sources import of_name

    return of_name(info["module"], info["fullname"]) if info["module"] else None
