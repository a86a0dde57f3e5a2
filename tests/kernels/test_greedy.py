"""verify_greedy: keep the drafts while they are the argmax, then emit the argmax."""

from __future__ import annotations

import pytest
import torch
from canaries import Canaries
from engine_cases import atlas, cases
from hypothesis import given
from hypothesis import strategies as st
from ragged_batch import runs

from specedu.kernels import Verified, contract, verify_greedy


def verify(
    drafts: list[list[int]], argmax: list[list[int]], bonus: list[int], **options: object
) -> Verified:
    """Lay out the requests: each one's argmax rows, then its bonus row."""
    rows = [t for row, b in zip(argmax, bonus, strict=True) for t in [*row, b]]
    counts = torch.tensor([len(row) for row in drafts])
    return verify_greedy(
        torch.tensor(rows, dtype=torch.int64),
        torch.tensor([x for row in drafts for x in row], dtype=torch.int32),
        counts.cumsum(0).int(),
        **{"max_spec_len": int(counts.max()), **options},
    )


@pytest.mark.parametrize("case", cases("G02", "G04", "G05", "G06", "G08", "G09", "G10", "G12"))
def test_greedy_cases(backend: str, case: dict) -> None:
    given_ = case["input"]
    result = verify(given_["drafts"], given_["target_argmax"], given_["bonus"], backend=backend)
    assert result.token_ids.tolist() == case["expect"]["output"]


@atlas("B140")
def test_only_the_leading_run_counts(backend: str, atlas_row: str) -> None:
    flags = [[1, 0, 1], [1, 1, 1], [0, 1, 0]]
    drafts = [[5 if flag else 6 for flag in row] for row in flags]
    result = verify(drafts, [[5, 5, 5]] * 3, [9] * 3, backend=backend)
    assert result.num_accepted.tolist() == [1, 3, 0]
    assert [len(run) for run in runs(result)] == [2, 4, 1]


@atlas("B35")
def test_a_draft_of_a_tied_id_is_refused_and_the_lowest_emitted(
    backend: str, atlas_row: str
) -> None:
    argmax = torch.tensor([[2.0, 2.0, 1.0], [0.0, 1.0, 0.0]]).argmax(1).tolist()
    assert runs(verify([[1]], [argmax[:1]], argmax[1:], backend=backend)) == [[0]]


@atlas("B60")
def test_a_batch_without_any_draft_emits_one_token_each(backend: str, atlas_row: str) -> None:
    assert runs(verify([[], []], [[], []], [3, 4], backend=backend)) == [[3], [4]]


@pytest.mark.parametrize("draft", [-1, -2, 10**6])
def test_an_id_that_is_none_is_never_accepted(backend: str, draft: int) -> None:
    # Unchecked, even an argmax of -1 must not meet a placeholder.
    result = verify([[draft, 3]], [[draft if draft < 0 else 2, 3]], [4], backend=backend,
                    check=False)  # fmt: skip
    assert result.num_accepted.tolist() == [0]


def test_an_empty_batch_gives_an_empty_result(backend: str) -> None:
    none = torch.empty(0, dtype=torch.int32)
    result = verify_greedy(none.long(), none, none, max_spec_len=2, backend=backend)
    assert result.token_ids.shape == (0, 3)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], list[int]]:
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
    drafts = [[draw(st.integers(-1, 3)) for _ in range(n)] for n in counts]
    argmax = [[draw(st.integers(0, 3)) for _ in range(n)] for n in counts]
    return drafts, argmax, [draw(st.integers(0, 3)) for _ in counts]


def reference(drafts: list[int], argmax: list[int], bonus: int) -> list[int]:
    for i, (x, best) in enumerate(zip(drafts, argmax, strict=True)):
        if x != best:
            return [*drafts[:i], best]
    return [*drafts, bonus]


@given(batches())
def test_both_versions_emit_what_the_reference_does(batch: tuple) -> None:
    expected = [reference(*request) for request in zip(*batch, strict=True)]
    for backend in ("torch", "triton"):
        result = verify(*batch, max_spec_len=5, backend=backend)
        assert runs(result) == expected
        assert result.token_ids.shape[1] == 6


@given(batches())
def test_a_request_emits_the_same_alone(batch: tuple) -> None:
    together = runs(verify(*batch))
    alone = [runs(verify(*([part] for part in parts)))[0] for parts in zip(*batch, strict=True)]
    assert together == alone


@pytest.mark.parametrize("fill", [0x00, 0x7F, 0xFF])
def test_nothing_outside_the_buffers_is_read_or_written(
    backend: str, fill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = Canaries(fill)
    blank = contract.blank
    monkeypatch.setattr(
        contract,
        "blank",
        lambda *arguments: Verified(*(canaries.around(tensor) for tensor in blank(*arguments))),
    )
    arguments = [
        canaries.around(torch.tensor([1, 5, 3, 4, 9, 2, 7, 8])),
        canaries.around(torch.tensor([1, 2, 3, 2, -1], dtype=torch.int32)),
        canaries.around(torch.tensor([3, 3, 5], dtype=torch.int32)),
    ]
    copies = [argument.clone() for argument in arguments]
    result = verify_greedy(*arguments, max_spec_len=3, backend=backend)
    assert runs(result) == [[1, 5], [9], [2, 7]]
    assert all(map(torch.equal, arguments, copies))
    assert canaries.alive()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_argmax": torch.tensor([1, 2], dtype=torch.int32)}, "target_argmax: dtype"),
        ({"target_argmax": torch.tensor([1, -1])}, r"target_argmax\[1\]: -1, expected an id"),
        (
            {"draft_token_ids": torch.tensor([-2], dtype=torch.int32)},
            r"draft_token_ids\[0\]: -2, expected -1 \(nothing to accept\) or an id",
        ),
        ({"max_spec_len": 0}, r"cu_num_draft_tokens\[0\]: 1, expected at most max_spec_len = 0"),
        ({"backend": "numpy"}, "backend: 'numpy', expected None or one of torch, triton"),
    ],
)
def test_a_refusal_names_the_argument_the_value_and_the_range(changes: dict, message: str) -> None:
    arguments = {
        "target_argmax": torch.tensor([1, 2]),
        "draft_token_ids": torch.tensor([1], dtype=torch.int32),
        "cu_num_draft_tokens": torch.tensor([1], dtype=torch.int32),
        "max_spec_len": 1,
    }
    verify_greedy(**arguments)
    with pytest.raises(ValueError, match=message):
        verify_greedy(**{**arguments, **changes})
