"""The playground's address, which carries its state."""

from __future__ import annotations

PARTS = ("common", "law", "playground")
STATE = {"p": [6, 6, 4], "q": [2, 2, 12], "kappa": 2, "fault": "reused-coin", "turning": True}


def test_an_address_brings_its_state_back(ask):
    expression = "m.fromAddress(m.toAddress({ get: (name) => argument[name] }))"
    assert ask(PARTS, expression, STATE | {"onehot": False}) == STATE | {"onehot": False}


def test_an_address_that_is_none_of_ours_changes_nothing(ask):
    assert ask(PARTS, "m.fromAddress('#puzzles')") is None


def test_what_an_address_has_wrong_is_left_as_it_was(ask):
    found = ask(PARTS, "m.fromAddress('#break-it?p=1.2.3&q=1.x.9&kappa=7&fault=constructor')")
    assert found == {"turning": False, "onehot": False}
