"""The helpers that figures share."""

from __future__ import annotations

import pytest

LAWS = [[6, 6, 4], [0, 0, 16], [1, 5, 10], [16, 0, 0], [8, 8]]


@pytest.mark.parametrize("law", LAWS)
def test_setting_one_entry_keeps_the_sum(ask, law):
    found = ask(
        ("common",),
        "argument.flatMap((_, id) => Array.from({ length: 20 }, (_, v) => "
        "[id, v - 2, m.withEntry(argument, id, v - 2)]))",
        law,
    )
    for id_, value, changed in found:
        assert changed[id_] == min(max(value, 0), sum(law))
        assert sum(changed) == sum(law) and min(changed) >= 0


def test_what_is_taken_comes_from_the_others_by_their_size(ask):
    assert ask(("common",), "m.withEntry([4, 8, 4], 2, 10)") == [2, 4, 10]
