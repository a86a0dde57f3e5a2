"""Keep each page's scripts to what that page uses.

jupyter-book 1.0.4 on Sphinx 7.4 emits the settings of thebe and of the toggle button twice, which
is a SyntaxError in the console of every page, and loads thebe where nothing launches it. The
figures' host is dropped from pages without a figure. A bibliography loses a role that its entries
do not fit.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

LIST = '<div role="list" class="citation-list">'  # docutils'; its children are no list items


def trim_scripts(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Leave out what is there twice, thebe, widget state, and an unused host of figures."""
    has_figure = "application/x-afm+json" in (context.get("body") or "")
    seen: set[str] = set()
    kept = []
    for script in context.get("script_files", []):
        attributes = getattr(script, "attributes", {})
        key = attributes.get("body") or str(getattr(script, "filename", script))
        unused = (
            key in seen
            or "thebe" in key.lower()
            or attributes.get("type") == "application/vnd.jupyter.widget-state+json"
            or ("afm-host.js" in key and not has_figure)
        )
        if not unused:
            seen.add(key)
            kept.append(script)
    context["script_files"] = kept
    if LIST in (context.get("body") or ""):
        context["body"] = context["body"].replace(LIST, '<div class="citation-list">')


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the hook, late enough to see every script."""
    app.connect("html-page-context", trim_scripts, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
