"""The project's own prompts, of eight kinds that speculation meets in practice.

How much a draft gains depends on the text: copying and editing repeat the prompt, a story does not.
Benchmarks time the first of each kind; the tests of sameness run over more of them.
"""

from __future__ import annotations

NOTE = """\
The night train leaves Lisbon at 21:40 and reaches Madrid at 07:15. Passengers may board from
21:00. Bicycles travel in the last carriage and need a ticket of their own. The dining car opens at
22:00 and closes at midnight; breakfast is served from 06:00. Between Entroncamento and the border
the train stops only once, at Abrantes. Heating in the sleeping cars is set to nineteen degrees."""

TABLE = """\
name,city,since
Ines,Porto,2019
Karim,Lyon,2021
Mei,Turin,2018
Oskar,Gdansk,2022"""

FUNCTION = """\
def total_price(items, tax_rate):
    total = 0
    for item in items:
        if item.quantity > 0:
            total = total + item.price * item.quantity
    total = total * (1 + tax_rate)
    return total"""

RECIPE = """\
Bring one litre of water to the boil. Add 300 grams of lentils and a bay leaf. Simmer for twenty
minutes. Fry two onions in olive oil until they are brown. Stir the onions into the lentils, add
salt, and serve with lemon."""

REPORT = """\
The bridge was inspected on 4 March. Two of the eight bearings on the north side showed rust, and
one expansion joint had lost its seal. The deck is sound. Lighting failed on three poles. The
inspectors advise replacing the joint before winter and the bearings within two years; until then
lorries above thirty tonnes should take the ring road."""

KINDS: dict[str, tuple[str, ...]] = {
    "chat": (
        "Why do we have leap years?",
        "What is a good way to learn to swim as an adult?",
        "Can you explain what a heat pump does?",
        "My plant has yellow leaves. What could be wrong?",
        "How do I say thank you in four languages?",
        "What is the difference between weather and climate?",
        "Is it better to run in the morning or in the evening?",
    ),
    "code": (
        "Write a Python function that returns the n-th Fibonacci number without recursion.",
        "Write a Python function that checks whether a string is a palindrome.",
        "Write a Python class for a stack with push, pop and peek.",
        "Write a Python function that counts how often each word occurs in a text.",
        "Write a bash command that lists the ten largest files in a folder.",
        "Write a Python function that merges two sorted lists.",
        "Write a SQL query that finds customers without any order.",
    ),
    "list": (
        "List the planets of the solar system with one fact about each.",
        "List ten things to pack for a week of hiking.",
        "List the months of the year with their number of days.",
        "List eight common fruits and their colours.",
        "List five ways to save water at home.",
        "List the first ten even numbers and their squares.",
    ),
    "copy": (
        f"Repeat the following text word for word.\n\n{NOTE}",
        f"Repeat the following text word for word.\n\n{RECIPE}",
        f"Repeat the following code word for word.\n\n{FUNCTION}",
        f"Repeat the following table word for word.\n\n{TABLE}",
        f"Repeat the following text word for word.\n\n{REPORT}",
        f"Repeat the following text twice, word for word.\n\n{RECIPE}",
    ),
    "summary": (
        f"Summarise the following text in two sentences.\n\n{NOTE}",
        f"Summarise the following text in two sentences.\n\n{REPORT}",
        f"Summarise the following recipe in one sentence.\n\n{RECIPE}",
        f"What are the three most important facts in this text?\n\n{NOTE}",
        f"Give the following text a title and one line of summary.\n\n{REPORT}",
        f"Explain to a child what this function does.\n\n{FUNCTION}",
    ),
    "edit": (
        f"Rename the variable total to amount here and return the whole code.\n\n{FUNCTION}",
        f"Replace lentils by beans in this recipe and return the whole recipe.\n\n{RECIPE}",
        f"Replace Madrid by Seville in this text and return the whole text.\n\n{NOTE}",
        f"Add a docstring to this function and return the whole code.\n\n{FUNCTION}",
        f"Change every year to 2024 in this table and return the whole table.\n\n{TABLE}",
        f"Change 4 March to 9 May in this text and return the whole text.\n\n{REPORT}",
    ),
    "json": (
        "Write a JSON list of five cities, each with name, country and population.",
        f"Turn this table into a JSON list of objects.\n\n{TABLE}",
        "Write a JSON object that describes a book with title, author, year and chapters.",
        "Write a JSON list of four users with id, name and email.",
        "Write a JSON configuration for a web server with host, port and logging.",
        f"Write the steps of this recipe as a JSON list of strings.\n\n{RECIPE}",
    ),
    "story": (
        "Tell a short story about a lighthouse keeper who finds a letter.",
        "Tell a short story about two friends who build a boat.",
        "Tell a short story about a clock that runs backwards.",
        "Tell a short story about a dog that learns to read.",
        "Write a short poem about the first snow.",
        "Tell a short story about a village without a name.",
    ),
}


def first_of_each() -> dict[str, str]:
    """Return one prompt a kind.

    Example:
        >>> sorted(first_of_each())[:3]
        ['chat', 'code', 'copy']
    """
    return {kind: prompts[0] for kind, prompts in KINDS.items()}


def all_prompts() -> list[tuple[str, str]]:
    """Return every prompt as (kind and number, text).

    Example:
        >>> len(all_prompts()), all_prompts()[0][0]
        (50, 'chat-0')
    """
    return [
        (f"{kind}-{i}", text) for kind, prompts in KINDS.items() for i, text in enumerate(prompts)
    ]
