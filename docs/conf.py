"""How Sphinx builds the documentation: `make docs`."""

import logging
import sys
from pathlib import Path

from coterie import __version__

sys.path.insert(0, str(Path(__file__).parent))  # the extensions beside this file
logging.getLogger("coterie").setLevel(
    logging.WARNING
)  # a package that Sphinx imports lets every logger print

project = "coterie"
author = project_copyright = "The coterie developers"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "mathml",
    "pages",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["README.md"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 3

smartquotes = False  # two hyphens begin an option
default_role = "code"  # docstrings mark code by single backticks
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # fields of a NamedTuple are listed once

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_title = f"coterie {version}"  # the version on every page
html_static_path = ["static"]
html_css_files = ["coterie.css"]
html_js_files = ["labels.js"]
html_copy_source = False
html_show_sourcelink = False
