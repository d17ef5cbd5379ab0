"""The docs site: `make docs`, with every warning an error."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from reference import write  # noqa: E402  beside this file

from sia import __version__  # noqa: E402

project = "SIA"
author = "the authors of SIA"
copyright = author
version = release = __version__
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
html_theme = "furo"
html_title = f"SIA {__version__}"
html_show_sphinx = False
html_copy_source = False

write(HERE / "generated")
