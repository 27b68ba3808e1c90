"""Edits that the resync drafter has to follow. One case: name, source, output, at most how many
drafts may meet a token that isn't the output's, and at most how many steps all may take at k = 16.

The toy tokenizer has a word with and without the blank before it as two tokens, as real ones do: a
rename is learned for each of them."""

from __future__ import annotations

Case = tuple[str, str, str, int, int]

CODE = """def total(items, limit):
    result = 0
    for item in items:
        if item.price > limit:
            continue
        result += item.price
    print("total", result)
    return result


class Basket:
    def __init__(self, owner):
        self.owner = owner
        self.items = []

    def add(self, item):
        self.items.append(item)
        return self

    def price(self):
        result = total(self.items, 99)
        return round(result, 2)
"""

TEXT = """The cat sat on the mat and looked at the bird. The bird looked back at the cat.
When the cat jumped, the bird flew away. Nobody saw the cat again that day.
In the evening the cat came home and slept. The end of this story is near.
"""


def renamed(old: str, new: str, text: str = CODE) -> str:
    return text.replace(old, new)


def without(line: str, text: str = CODE) -> str:
    assert line in text
    return text.replace(line, "")


# The first draft of all is a guess from one token and may fail, too.
CASES: list[Case] = [
    ("verbatim", CODE, CODE, 1, 15),
    ("one token by one", CODE, renamed("result", "amount"), 3, 17),
    ("one by two", CODE, renamed("result", "grand amount"), 6, 21),
    ("one by three", CODE, renamed("result", "a b c"), 8, 25),
    ("two by one", CODE, renamed("item.price", "cost"), 3, 17),
    ("two by two", CODE, renamed("self.items", "self.goods.all"), 4, 20),
    ("another name", CODE, renamed("Basket", "Cart"), 2, 17),
    ("a name used once", CODE, renamed("owner", "buyer"), 3, 17),
    ("two renames", CODE, renamed("limit", "maximum").replace("result", "amount"), 3, 18),
    ("rename in prose", TEXT, renamed("cat", "dog", TEXT), 3, 9),
    ("two renames in prose", TEXT, renamed("cat", "dog", TEXT).replace("bird", "mouse"), 5, 11),
    ("rename to two words", TEXT, renamed("cat", "small dog", TEXT), 6, 12),
    ("a line put in", CODE, renamed('    print("total', '    log(1)\n    print("total'), 3, 19),
    ("a line put in front", CODE, "import math\n" + CODE, 2, 18),
    (
        "two lines put in",
        CODE,
        renamed("    return round", "    a = 1\n    b = 2\n    return round"),
        12,
        28,
    ),
    ("a line left out", CODE, without('    print("total", result)\n'), 2, 16),
    (
        "two lines left out",
        CODE,
        without("        if item.price > limit:\n            continue\n"),
        3,
        15,
    ),
    ("a word put in", TEXT, renamed("the evening", "the late evening", TEXT), 3, 8),
    ("a word left out", TEXT, renamed("flew away", "flew", TEXT), 2, 7),
    ("a word changed", TEXT, renamed("evening", "morning", TEXT), 2, 7),
    ("a phrase changed", TEXT, renamed("the bird flew away", "it was gone", TEXT), 3, 10),
    ("an argument put in", CODE, renamed("(items, limit", "(items, rate, limit"), 2, 17),
    ("an argument left out", CODE, renamed("(items, limit)", "(items)"), 2, 16),
    ("a comment put behind", CODE, renamed("result = 0", "result = 0  # so far"), 6, 21),
    (
        "rename and insert",
        CODE,
        renamed("result", "amount").replace("    ret", "    x = 1\n    ret"),
        12,
        28,
    ),
    ("prefix everywhere", CODE, renamed("self.", "self._"), 3, 18),
    ("quotes", CODE, renamed('"', "'"), 3, 19),
    ("the first half only", CODE, CODE[: len(CODE) // 2], 1, 8),
    ("the second half only", CODE, CODE[CODE.index("class") :], 1, 10),
    ("twice", CODE, CODE + CODE, 2, 29),
]
