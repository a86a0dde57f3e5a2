"""What every figure carries: a live widget, kernel-free HTML, a picture, and words."""

from __future__ import annotations

import json
import re

import pytest
import traitlets

from specedu import figures
from specedu.figures.figure import Figure

ALL = [getattr(figures, name) for name in figures.__all__ if name != "Figure"]


@pytest.fixture(params=ALL, ids=lambda cls: cls.__name__)
def figure(request) -> Figure:
    return request.param()


def test_a_figure_is_a_live_widget(figure, monkeypatch):
    monkeypatch.delenv("SPECEDU_STATIC", raising=False)
    data, _ = figure._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data and "text/html" not in data


def test_in_the_book_a_figure_carries_its_module_its_state_and_a_picture(figure, monkeypatch):
    monkeypatch.setenv("SPECEDU_STATIC", "1")
    data, _ = figure._repr_mimebundle_()
    spec = json.loads(re.search(r"x-afm\+json\">(.*)</script>", data["text/html"], re.S)[1])
    assert spec["state"] == json.loads(json.dumps(figure.state()))
    assert "export default" in spec["esm"]
    assert figure.png().startswith(b"\x89PNG")
    assert len(figure.alternative) > 40 and figure.alternative in data["text/html"].replace(
        "&#x27;", "'"
    )


def test_a_module_imports_nothing(figure):
    assert not re.search(r"^\s*import\b|\bimport\(", str(figure._esm), re.M)


def test_a_law_of_zeros_is_refused():
    with pytest.raises(traitlets.TraitError, match=r"p: \[0, 0, 0\], expected at least one"):
        figures.Stack(p=[0, 0, 0])
