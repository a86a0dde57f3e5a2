"""The book's interactive figures: one class and one front-end module each.

A figure computes in the browser, so that it reacts in a page without a kernel; in Jupyter the same
object is a live widget, whose state Python reads and sets.
"""

from .figure import Figure
from .playground import Playground
from .stack import Stack

__all__ = ["Figure", "Playground", "Stack"]
