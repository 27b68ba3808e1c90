"""Records that the template drafter has to foresee. One case: name, records, and how many of them
it may need to see; every later one must be drafted whole and right."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Case = tuple[str, list[str], int]


def records(make: Callable[[int], str], numbers: Iterable[int]) -> list[str]:
    return [make(i) for i in numbers]


def clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def minutes(seconds: int) -> str:
    return f"{seconds // 60:02}:{seconds % 60:02}"


CASES: list[Case] = [
    # one counter
    ("from 1", records(lambda i: f"Item {i}: done\n", range(1, 14)), 2),
    ("9 to 10", records(lambda i: f"Step {i} of many.\n", range(7, 13)), 2),
    ("09 to 10", records(lambda i: f"file_{i:02}.txt\n", range(6, 14)), 2),
    ("99 to 100", records(lambda i: f"No {i} is here\n", range(95, 106)), 2),
    ("099 to 100", records(lambda i: f"part-{i:03}.bin\n", range(96, 104)), 2),
    ("0099 to 0100", records(lambda i: f"img{i:04}.png\n", range(97, 103)), 2),
    ("999 to 1000", records(lambda i: f"id={i};\n", range(996, 1004)), 2),
    ("descending", records(lambda i: f"T minus {i} seconds\n", range(25, 12, -1)), 2),
    ("descending over 10", records(lambda i: f"{i} bottles of tea\n", range(13, 3, -1)), 2),
    ("descending padded", records(lambda i: f"left {i:03} of all\n", range(14, 5, -1)), 2),
    ("step 5", records(lambda i: f"mark {i} cm\n", range(0, 60, 5)), 2),
    ("step 5 over 100", records(lambda i: f"mark {i} cm\n", range(80, 130, 5)), 2),
    ("step 25 descending", records(lambda i: f"credit {i} left\n", range(500, 300, -25)), 2),
    ("step 100 padded", records(lambda i: f"offset {i:05}\n", range(9600, 10500, 100)), 2),
    ("inline", records(lambda i: f"{i}, ", range(95, 120)), 3),
    ("inline with a word", records(lambda i: f"x{i}=y{i};", range(1, 14)), 2),
    ("glued to a word", records(lambda i: f"var{i} = None\n", range(8, 16)), 2),
    ("in brackets", records(lambda i: f"a[{i}] = 0;\n", range(8, 14)), 2),
    ("zero-based", records(lambda i: f"slot {i}: empty\n", range(0, 12)), 2),
    ("large numbers", records(lambda i: f"pid {i} ok\n", range(4194299, 4194307)), 2),
    # several fields
    ("two steps", records(lambda i: f"row {i}: {i * 7}\n", range(1, 15)), 2),
    ("up and down", records(lambda i: f"{i} of {100 - i} left\n", range(5, 20)), 2),
    ("constant field", records(lambda i: f"Page {i} of 20\n", range(1, 14)), 2),
    ("a range", records(lambda i: f"rows {i * 10}-{i * 10 + 9}\n", range(0, 12)), 2),
    ("three fields", records(lambda i: f"{i};{i * 3};{1000 - i}\n", range(1, 12)), 2),
    ("same number twice", records(lambda i: f"<li id={i}>{i}</li>\n", range(3, 13)), 2),
    ("times table", records(lambda i: f"{i} x 7 = {i * 7}\n", range(1, 13)), 2),
    ("temperature table", records(lambda i: f"| {i * 10} | {18 * i + 32} |\n", range(0, 9)), 3),
    ("csv", records(lambda i: f"{i},active,{2000 + i},0.5\n", range(1, 12)), 2),
    ("json lines", records(lambda i: f'{{"id": {i}, "next": {i + 1}}}\n', range(8, 14)), 2),
    (
        "json over lines",
        records(lambda i: f'  {{\n    "id": {i},\n    "port": {8000 + i}\n  }},\n', range(1, 9)),
        2,
    ),
    ("sql", records(lambda i: f"INSERT INTO t VALUES ({i}, {i * 50});\n", range(1, 10)), 2),
    ("markdown list", records(lambda i: f"{i}. See chapter {i + 4}\n", range(1, 13)), 2),
    ("steps of two widths", records(lambda i: f"{i:02} -> {i * 11}\n", range(1, 15)), 2),
    # curves
    ("squares", records(lambda i: f"Item {i}: square is {i * i}\n", range(1, 16)), 3),
    ("squares from 8", records(lambda i: f"Item {i}: square is {i * i}\n", range(8, 20)), 3),
    ("triangular", records(lambda i: f"T({i}) = {i * (i + 1) // 2}\n", range(3, 14)), 3),
    ("cubes", records(lambda i: f"{i} cubed is {i**3}\n", range(2, 13)), 5),
    ("powers of two", records(lambda i: f"2^{i} = {2**i}\n", range(1, 16)), 3),
    ("powers of ten", records(lambda i: f"1e{i} is {10**i}\n", range(1, 9)), 3),
    ("every third", records(lambda i: f"job {i} on worker {i % 3}\n", range(1, 18)), 6),
    ("every second", records(lambda i: f"square {i} is {i % 2}\n", range(1, 14)), 4),
    # letters
    ("a)", records(lambda i: f"{chr(97 + i)}) yes or no\n", range(10)), 2),
    ("A.", records(lambda i: f"{chr(65 + i)}. yes or no\n", range(10)), 2),
    ("(a)", records(lambda i: f"({chr(97 + i)}) yes or no\n", range(10)), 2),
    ("- a)", records(lambda i: f"- {chr(97 + i)}) yes or no\n", range(10)), 2),
    ("z to a", records(lambda i: f"{chr(122 - i)}) yes or no\n", range(10)), 2),
    ("letters and numbers", records(lambda i: f"{chr(97 + i)}. page {i * 4 + 1}\n", range(10)), 2),
    # CJK
    ("cjk 1", records(lambda i: f"第 {i} 点：请看下面\n", range(7, 14)), 2),
    ("cjk 2", records(lambda i: f"第{i}章 共20页\n", range(8, 14)), 2),
    ("cjk 3", records(lambda i: f"项目{i}的平方是{i * i}。", range(1, 13)), 3),
    ("japanese", records(lambda i: f"{i}月{i + 9}日\n", range(1, 12)), 2),
    ("korean", records(lambda i: f"제{i}장: {i * 5}쪽\n", range(1, 12)), 2),
    # times and dates
    ("00:58", records(lambda i: f"{minutes(i)} tick\n", range(56, 66)), 2),
    ("10:00 to 09:59", records(lambda i: f"{minutes(i)} left\n", range(603, 596, -1)), 2),
    ("every 15 s", records(lambda i: f"at {minutes(i)} mark\n", range(0, 200, 15)), 2),
    ("09:59", records(lambda i: f"{minutes(i)} tick\n", range(595, 605)), 2),
    ("59:59", records(lambda i: f"{clock(i)} tick\n", range(3596, 3606)), 2),
    ("midnight", records(lambda i: f"{clock(i % 86400)} tick\n", range(86396, 86406)), 2),
    ("half hours", records(lambda i: f"{i // 2:02}:{i % 2 * 30:02} open\n", range(15, 26)), 2),
    ("backwards", records(lambda i: f"{minutes(i)} left\n", range(63, 55, -1)), 2),
    ("h:mm:ss", records(lambda i: f"{clock(i)[1:]} lap\n", range(3590, 3606)), 2),
    ("milliseconds", records(lambda i: f"{clock(i // 4)}.{i % 4 * 250:03} x\n", range(12)), 2),
    (
        "subtitles",
        records(
            lambda i: f"{i}\n{clock(2 * i)},500 --> {clock(2 * i + 1)},900\nhm\n\n", range(27, 34)
        ),
        3,
    ),
    ("dates", records(lambda i: f"2026-11-{i:02}: closed\n", range(5, 14)), 2),
    (
        "end of month",
        ["2024-02-27,x\n", "2024-02-28,x\n", "2024-02-29,x\n", "2024-03-01,x\n"],
        2,
    ),
    (
        "end of year",
        [
            f"{d}: a\n"
            for d in ("2026-12-28", "2026-12-29", "2026-12-30", "2026-12-31", "2027-01-01")
        ],
        2,
    ),
    (
        "months",
        records(lambda i: f"{2026 + i // 12}-{i % 12 + 1:02}-01: rent\n", range(8, 16)),
        2,
    ),
    ("slashes", records(lambda i: f"2026/03/{i:02} rain\n", range(8, 13)), 2),
    (
        "log",
        records(lambda i: f"[2026-11-30 23:59:{i:02}] INFO step {i - 40} ok\n", range(50, 60))
        + records(lambda i: f"[2026-12-01 00:00:{i:02}] INFO step {i + 20} ok\n", range(0, 5)),
        2,
    ),
    (
        "iso log",
        records(lambda i: f"2026-02-28T{clock(86390 + 2 * i)}Z id={i}\n", range(5))
        + records(lambda i: f"2026-03-01T{clock(2 * i)}Z id={i + 5}\n", range(4)),
        2,
    ),
    # decimals, thousands, sections
    ("decimals", records(lambda i: f"x = {i // 10}.{i % 10}\n", range(6, 14)), 2),
    ("quarters", records(lambda i: f"x = {i // 4}.{i % 4 * 25:02}\n", range(10)), 2),
    ("sections", records(lambda i: f"1.{i} More about it\n", range(7, 13)), 2),
    ("versions", records(lambda i: f"v1.2.{i} released\n", range(7, 13)), 2),
    ("addresses", records(lambda i: f"10.0.0.{i} up\n", range(97, 104)), 2),
    ("thousands", records(lambda i: f"sum {i // 1000},{i % 1000:03} EUR\n", range(1996, 2004)), 2),
]
