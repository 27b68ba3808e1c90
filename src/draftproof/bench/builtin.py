"""The built-in workloads of `draftproof bench`: what speculation is for, and what it isn't for.

Short texts written for this purpose, each of another kind: copies, edits, conversions, counters,
and prose in which nothing repeats.
"""

from __future__ import annotations

from draftproof.bench.workloads import Workload

_LETTER = """Dear members of the rowing club,

the boathouse will be closed from the second to the ninth of May, because the slipway is being \
repaired. Boats that are stored on the lower racks have to be moved to the yard before the first \
of May; a trailer and four volunteers will be there on Saturday from nine o'clock. Please mark \
your boat with your name and your telephone number, since the yard is shared with the sailing \
school.

During the repair the club meets at the pier behind the fish market. Training for beginners takes \
place on Tuesday and Thursday evenings, training for the racing crews on Saturday mornings. The \
keys of the pier are kept at the harbour office, where every helmsman has to sign for them.

The annual meeting is postponed to the twentieth of May. Proposals for the agenda can be handed in \
until the fifteenth. The treasurer asks everybody who has not paid the membership fee to do so \
before the meeting, and thanks all those who have helped to pay for the new slipway.

With kind regards, the committee"""

_CODE = '''"""Stock of a small bookshop."""

from dataclasses import dataclass


@dataclass
class Book:
    isbn: str
    title: str
    price: float
    copies: int = 0


class Stock:
    def __init__(self):
        self.items = {}

    def add(self, book):
        if book.isbn in self.items:
            self.items[book.isbn].copies += book.copies
        else:
            self.items[book.isbn] = book

    def remove(self, isbn, copies=1):
        if isbn not in self.items:
            raise KeyError(f"no such book: {isbn}")
        book = self.items[isbn]
        if book.copies < copies:
            raise ValueError(f"only {book.copies} copies of {book.title}")
        book.copies -= copies
        if book.copies == 0:
            del self.items[isbn]
        return book

    def value(self):
        total = 0.0
        for book in self.items.values():
            total += book.price * book.copies
        return round(total, 2)

    def search(self, word):
        word = word.lower()
        found = []
        for book in self.items.values():
            if word in book.title.lower():
                found.append(book)
        return sorted(found, key=lambda book: book.title)

    def report(self):
        lines = []
        for isbn, book in sorted(self.items.items()):
            lines.append(f"{isbn} {book.title:<30} {book.copies:>4} {book.price:>8.2f}")
        lines.append(f"books: {len(self.items)}, value: {self.value():.2f}")
        return "\\n".join(lines)
'''

_CSV = """station,river,level_cm,flow_m3s,measured_at
Oberau,Lauter,142,18.4,2025-03-02T06:00
Niederau,Lauter,155,21.9,2025-03-02T06:00
Steinfurt,Wiese,88,7.2,2025-03-02T06:15
Muehltal,Wiese,93,8.0,2025-03-02T06:15
Bruckdorf,Kander,61,3.3,2025-03-02T06:30
Lindach,Kander,67,3.9,2025-03-02T06:30
Seeheim,Argen,210,44.6,2025-03-02T06:45
Wangen,Argen,198,40.1,2025-03-02T06:45"""


def _ask(name: str, kind: str, text: str, max_tokens: int) -> Workload:
    return Workload(name, kind, ({"role": "user", "content": text},), max_tokens)


BUILT_IN = (
    _ask(
        "verbatim-repeat",
        "repeat",
        f"Repeat this letter word for word, and write nothing else:\n\n{_LETTER}",
        300,
    ),
    _ask(
        "code-rename",
        "edit",
        "Rename the attribute `items` to `books` everywhere in this file. Answer with the whole "
        f"file in one code block.\n\n```python\n{_CODE}```",
        480,
    ),
    _ask(
        "csv-to-json",
        "convert",
        "Turn this CSV into a JSON array with one object per row. Answer with the JSON only."
        f"\n\n{_CSV}",
        320,
    ),
    _ask(
        "counter-squares",
        "counter",
        "Write 30 lines, one for each N from 1 to 30, in exactly this form and without anything "
        "else:\nItem N: square is N*N\nFor example the third line is:\nItem 3: square is 9",
        320,
    ),
    _ask(
        "log-lines",
        "counter",
        "Continue this log with 12 more lines of the same form, one line every 5 seconds:\n\n"
        "2025-03-02 09:59:40 INFO worker 0: batch 7 done\n"
        "2025-03-02 09:59:45 INFO worker 1: batch 8 done\n"
        "2025-03-02 09:59:50 INFO worker 2: batch 9 done\n"
        "2025-03-02 09:59:55 INFO worker 3: batch 10 done",
        320,
    ),
    _ask("prose", "prose", "Explain in plain words why the sea is salty and rivers are not.", 160),
)
