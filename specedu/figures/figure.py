"""The base of every figure: a widget in Jupyter, kernel-free HTML in the book, a picture in print.

A front-end module must not import anything, since it is loaded from a blob in a page and from the
model's state in Jupyter. Source shared by figures is therefore put before the figure's own when the
class is made: ``parts`` names the files.
"""

from __future__ import annotations

import base64
import html
import io
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import anywidget

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

HERE = Path(__file__).parent
NOT_STATE = {"layout", "tabbable", "tooltip", "comm"}


def module(*parts: str) -> str:
    """Return the source of one front-end module: ``parts`` one after another, the figure's last.

    Example:
        >>> module("common", "stack").count("export default")
        1
    """
    *shared, own = [(HERE / f"{part}.js").read_text(encoding="utf-8") for part in parts]
    return "\n".join([*(re.sub(r"(?m)^export ", "", source) for source in shared), own])


class Figure(anywidget.AnyWidget):
    """A figure that also carries itself as HTML where ``SPECEDU_STATIC`` is set.

    A subclass has traits tagged ``sync=True``, the names of its source files in ``parts``, a text
    alternative, and a picture of its state.
    """

    parts: ClassVar[tuple[str, ...]] = ()
    _esm = ""
    _css = HERE / "figure.css"

    def __init_subclass__(cls, **settings: Any) -> None:
        """Put the parts of a figure's module together."""
        super().__init_subclass__(**settings)
        if "parts" in vars(cls):  # and not in the class that adding traits makes of it
            cls._esm = module(*cls.parts)

    @property
    def alternative(self) -> str:
        """What the figure shows now, in words."""
        raise NotImplementedError

    def draw(self, picture: Picture) -> None:
        """Draw the present state into an empty matplotlib figure."""
        raise NotImplementedError

    def png(self) -> bytes:
        """Return the present state as a picture, for print and for pages without scripts."""
        from matplotlib.figure import Figure as Picture

        picture = Picture(figsize=(6.4, 3), dpi=110, layout="constrained")
        self.draw(picture)
        file = io.BytesIO()
        picture.savefig(file, format="png", metadata={"Software": None})
        return file.getvalue()

    def state(self) -> dict[str, Any]:
        """Return the traits that the front end sees."""
        names = [name for name in self.traits(sync=True) if not name.startswith("_")]
        return {name: getattr(self, name) for name in names if name not in NOT_STATE}

    def static_html(self, png: bytes) -> str:
        """Return the figure as HTML for the book's own host of figures, ``web/afm-host.js``."""
        cls = type(self).__name__
        spec = {"id": self.model_id, "cls": "Figure", "esm": str(self._esm),
                "css": Path(HERE / "figure.css").read_text(encoding="utf-8"),
                "state": self.state()}  # fmt: skip
        body = json.dumps(spec).replace("<", "\\u003c")
        data = base64.b64encode(png).decode()
        picture = (
            f'<img class="afm-fallback" alt="{html.escape(self.alternative)}" '
            f'src="data:image/png;base64,{data}">'
        )
        return (
            f'<div class="afm" data-figure="{cls}">{picture}'
            f'<script type="application/x-afm+json">{body}</script></div>'
        )

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        if not os.environ.get("SPECEDU_STATIC") or bundle is None:
            return bundle
        data, metadata = bundle
        png = self.png()
        data["text/html"] = self.static_html(png)
        data["image/png"] = base64.b64encode(png).decode()
        return data, metadata
