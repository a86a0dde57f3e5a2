"""The book's interactive figures: one class and one front-end module each.

A figure computes in the browser, so that it reacts in a page without a kernel; in Jupyter the same
object is a live widget, whose state Python reads and sets.
"""

from .block_against_token import BlockAgainstToken
from .figure import Figure
from .law_grid import LawGrid
from .memory_planner import MemoryPlanner
from .playground import Playground
from .rates_explorer import RatesExplorer
from .regimes import Regimes
from .roofline import Roofline
from .speedup_explorer import SpeedupExplorer
from .stack import Stack
from .thresholds import Thresholds
from .ties import Ties
from .timeline import Timeline
from .walker import Walker

__all__ = [
    "BlockAgainstToken",
    "Figure",
    "LawGrid",
    "MemoryPlanner",
    "Playground",
    "RatesExplorer",
    "Regimes",
    "Roofline",
    "SpeedupExplorer",
    "Stack",
    "Thresholds",
    "Ties",
    "Timeline",
    "Walker",
]
