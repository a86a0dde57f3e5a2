"""Data sheets: the two peaks and their ridge."""

from __future__ import annotations

import dataclasses

import pytest

from specedu.theory.hardware import HARDWARE, Hardware, hardware


def test_the_h100s_ridge_is_near_295_flop_per_byte() -> None:
    h100 = hardware("H100 SXM")
    assert h100.ridge == 989.4e12 / 3.35e12
    assert round(h100.ridge, 1) == 295.3
    assert round(989e12 / 3.35e12, 1) == 295.2  # the peak rounded to three figures


def test_faster_memory_alone_moves_the_ridge_down() -> None:
    h100, h200 = hardware("H100 SXM"), hardware("H200 SXM")
    assert h200.peak_flops == h100.peak_flops
    assert h200.ridge / h100.ridge == pytest.approx(3.35 / 4.8)


def test_every_sheet_names_its_source() -> None:
    for name, sheet in HARDWARE.items():
        assert name == sheet.name and sheet.source and sheet.date.isdigit()


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match="hardware: 'H100', expected one of H100 SXM, "):
        hardware("H100")


@pytest.mark.parametrize("setting", ["peak_flops", "bandwidth"])
def test_a_peak_of_zero_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=f"{setting}: 0, expected above 0"):
        dataclasses.replace(hardware("H100 SXM"), **{setting: 0})


def test_sheets_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        hardware("H100 SXM").bandwidth = 1.0


def test_a_sheet_is_a_value() -> None:
    assert Hardware("a", 1.0, 1.0, "s", "2026") == Hardware("a", 1.0, 1.0, "s", "2026")
