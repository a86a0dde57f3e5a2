"""The book's interactive figures: one class and one front-end module each.

A figure computes in the browser, so that it reacts in a page without a kernel; in Jupyter the same
object is a live widget, whose state Python reads and sets.
"""

from .figure import Figure
from .law_grid import LawGrid
from .playground import Playground
from .roofline import Roofline
from .stack import Stack
from .timeline import Timeline
from .walker import Walker

__all__ = ["Figure", "LawGrid", "Playground", "Roofline", "Stack", "Timeline", "Walker"]
