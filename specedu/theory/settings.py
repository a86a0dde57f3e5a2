"""What the exact law is computed on: small target and draft laws, written as fractions.

A good pair has a residual of at least two ids wherever the vocabulary allows it, since a coin that
is used twice hides behind a residual of one. And a good setting *turns*: its laws depend on the
text, so that a row taken from the wrong place cannot agree by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from .reference import Conditional, Law, Text


@dataclass(frozen=True)
class Setting:
    """One request as the exact law sees it.

    Attributes:
        name: how the report calls it.
        target: the target's law of the next token, given the text behind the prompt.
        draft: the draft's; a law without mass means that nothing is proposed (a draft of -1).
        kappa: how many tokens are drafted.
        vocab: how many ids there are.
        onehot: the rule is told that q is one-hot at the drafted id, whatever ``draft`` is.
        greedy: the rule is told to take the argmax; the target law is one-hot at it.
        withdraw: ``withdraw(text, id)`` replaces a drawn id by -1, keeping its q row; None: never.
    """

    name: str
    target: Conditional
    draft: Conditional
    kappa: int
    vocab: int
    onehot: bool = False
    greedy: bool = False
    withdraw: Callable[[Text, int], bool] | None = None

    def law(self, text: Text) -> Law:
        """Return the law that the emitted token must have behind ``text``.

        Example:
            >>> fixed(law_of("1/4 3/4"), law_of("1 0"), 1).law(())
            (Fraction(1, 4), Fraction(3, 4))
        """
        p = self.target(text)
        if not self.greedy:
            return p
        best = p.index(max(p))
        return tuple(Fraction(int(token == best)) for token in range(self.vocab))

    def after(self, text: Text, kappa: int) -> Setting:
        """Return the setting of a later step, which begins behind ``text``.

        Example:
            >>> fixed(law_of("1/4 3/4"), law_of("1 0"), 1).after((0, 1), 2).kappa
            2
        """
        return replace(
            self,
            target=lambda more: self.target((*text, *more)),
            draft=lambda more: self.draft((*text, *more)),
            kappa=kappa,
            withdraw=self.withdraw and (lambda more, x: self.withdraw((*text, *more), x)),
        )


def law_of(words: str) -> Law:
    """Read a law from fractions or decimals between blanks or commas.

    Raises:
        ValueError: an entry is no number or negative, or the sum is not 1.

    Example:
        >>> law_of("1/4, 0.75")
        (Fraction(1, 4), Fraction(3, 4))
    """
    try:
        law = tuple(Fraction(word) for word in words.replace(",", " ").split())
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{words!r}, expected fractions like '1/4 3/4'") from None
    if not law or min(law) < 0 or sum(law) != 1:
        raise ValueError(f"{words!r} sums to {sum(law)}, expected entries >= 0 that sum to 1")
    return law


def fixed(p: Law, q: Law, kappa: int, **changes: object) -> Setting:
    """Return a setting whose laws are the same behind every text.

    Example:
        >>> fixed(law_of("1/4 3/4"), law_of("3/4 1/4"), 2).name
        'p (1/4 3/4) q (3/4 1/4)'
    """
    setting = Setting(f"p {show(p)} q {show(q)}", lambda text: p, lambda text: q, kappa, len(p))
    return replace(setting, **changes)


def turning(p: Law, q: Law, kappa: int, **changes: object) -> Setting:
    """Return a setting whose laws are turned by the length and the ids of the text.

    Example:
        >>> setting = turning(law_of("1/4 3/4"), law_of("3/4 1/4"), 2)
        >>> [setting.target(text) for text in [(), (0,)]]
        [(Fraction(1, 4), Fraction(3, 4)), (Fraction(3, 4), Fraction(1, 4))]
    """

    def turned(law: Law) -> Conditional:
        def behind(text: Text) -> Law:
            by = (len(text) + 2 * sum(text)) % len(law)
            return law[by:] + law[:by]

        return behind

    name = f"p {show(p)} q {show(q)} turning"
    return replace(Setting(name, turned(p), turned(q), kappa, len(p)), **changes)


def show(law: Sequence[Fraction]) -> str:
    """Return a law as one short word.

    Example:
        >>> show(law_of("1/4 3/4"))
        '(1/4 3/4)'
    """
    return "(" + " ".join(str(entry) for entry in law) + ")"


# Target and draft laws by vocabulary size. Dyadic pairs come first: float32 holds them exactly, so
# what the law says of them is what the rule does, without any rounding in between.
PAIRS: dict[int, list[tuple[Law, Law]]] = {
    vocab: [(law_of(p), law_of(q)) for p, q in pairs]
    for vocab, pairs in {
        2: [
            ("1/4 3/4", "3/4 1/4"),
            ("5/16 11/16", "13/16 3/16"),
            ("3/8 5/8", "1 0"),
            ("0 1", "1/2 1/2"),
            ("1/3 2/3", "2/3 1/3"),
        ],
        3: [
            ("3/8 3/8 1/4", "1/8 1/8 3/4"),
            ("1/4 3/4 0", "1/2 1/4 1/4"),
            ("1/2 1/4 1/4", "1/2 1/4 1/4"),
            ("1/5 1/2 3/10", "3/5 1/10 3/10"),  # the source text's three
            ("1/5 1/2 3/10", "1 0 0"),
            ("2/5 2/5 1/5", "1/10 1/10 4/5"),
        ],
        4: [
            ("5/16 5/16 1/4 1/8", "1/8 3/16 3/16 1/2"),
            ("1/2 1/4 1/8 1/8", "1/8 1/8 1/4 1/2"),
            ("1/4 0 1/2 1/4", "0 1/2 1/4 1/4"),
            ("3/10 3/10 3/10 1/10", "1/10 1/5 1/5 1/2"),
            ("1/3 1/3 1/6 1/6", "1/6 1/6 1/3 1/3"),
        ],
    }.items()
}


def grid(
    vocabs: Sequence[int] = (2, 3, 4),
    kappas: Sequence[int] = (1, 2, 3),
    onehot: Sequence[bool] = (False, True),
) -> Iterator[Setting]:
    """Yield the settings that every chain rule goes through, the smallest first.

    Each pair stands once with laws that stay and once with laws that turn.

    Example:
        >>> len(list(grid(vocabs=[2], kappas=[1], onehot=[False])))
        10
    """
    for vocab in vocabs:
        for kappa in kappas:
            for flag in onehot:
                for p, q in PAIRS[vocab]:
                    for make in (fixed, turning):
                        yield make(p, q, kappa, onehot=flag)
