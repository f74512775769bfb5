"""*Blocking.* Sphinx's settings for the site; ``make docs`` builds it.

Rule 1: the pages are plain Markdown that a reader of the repository sees as well. The navigation is
the lists of index.md, and the decisions are those in adr/.
Rule 2: a link that leaves this folder becomes a link to the repository. A link to a missing file or
heading, and a page that index.md does not list, fail the build.
Rule 3: the site loads nothing from other hosts.
Rule 4: the search shows settings and guides before internals and decisions (_static/scorer.js).
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

_DOCS = Path(__file__).parent
_ROOT = _DOCS.parent
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_REPOSITORY = f"{_PROJECT['urls']['Source']}/blob/main"
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")

project = "streamdedup"
author = "the streamdedup founders"
release = _PROJECT["version"]
html_title = f"streamdedup {release}"
extensions = ["myst_parser"]
exclude_patterns = ["schemas"]
myst_heading_anchors = 4
highlight_language = "none"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_search_scorer = str(_DOCS / "_static" / "scorer.js")
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {
    "source_repository": _PROJECT["urls"]["Source"],
    "source_branch": "main",
    "source_directory": "docs/",
}


def setup(app: Sphinx) -> None:
    """Register the conversion of pages."""
    app.connect("source-read", _convert)


def _convert(_: Sphinx, name: str, source: list[str]) -> None:
    page = _DOCS / f"{name}.md"
    text = source[0]
    if name == "index":
        text = _with_navigation(text)
    source[0] = _LINK.sub(lambda link: _resolved(link, page), text)


def _with_navigation(text: str) -> str:
    """Return the front page with a hidden table of contents for each of its lists."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    contents = ""
    for caption, section in zip(parts[1::2], parts[2::2], strict=True):
        pages = re.findall(r"^- \[[^]]+\]\(([^)#]+)\.md\)", section, flags=re.MULTILINE)
        contents += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n"
        contents += "\n".join(pages) + "\n```\n"
    decisions = "\n```{toctree}\n:hidden:\n:glob:\n:caption: Decisions\n\nadr/*\n```\n"
    text = text.replace("- [Decisions](adr/)", _decisions())
    return text + contents + decisions


def _decisions() -> str:
    """Return a list of the decisions."""
    pages = sorted((_DOCS / "adr").glob("*.md"))
    titles = {page: page.read_text(encoding="utf-8").split("\n", 1)[0] for page in pages}
    lines = [f"  - [{title.removeprefix('# ')}](adr/{page.name})" for page, title in titles.items()]
    return "\n".join(["- Decisions:", *lines])


def _resolved(link: re.Match[str], page: Path) -> str:
    """Return a link, to the repository if its target is not a page or picture of this folder."""
    target = (page.parent / link[1]).resolve()
    if not target.exists():
        logging.getLogger(__name__).warning("%s does not exist", link[1], location=str(page))
    inside = target.is_relative_to(_DOCS) and target.suffix in {".md", ".png", ".svg"}
    if inside:
        return link[0]
    return f"]({_REPOSITORY}/{target.relative_to(_ROOT)}{link[2] or ''})"
