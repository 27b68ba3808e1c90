"""Jinja environment for chat templates: the dialect of Hugging Face, within bounds.

A template comes out of a model file, so it may be hostile: it can't reach Python, change what it
is given, loop for long, or make text without limit. Knows nothing of tokens.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

OUTPUT_LIMIT = 16 << 20  # characters that one rendering may write
_LOOP_LIMIT = 1_000_000  # loop rounds and macro calls of one rendering
_SECONDS_LIMIT = 10.0
# Characters and list items made along the way, written or not: results of operators, filters and
# methods, and the literal text of loop bodies. Bounds what can pile up in variables, `{% set %}`
# blocks and macros; far above what a real template reaches.
_MADE_LIMIT = 64 * OUTPUT_LIMIT

_PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "translate"})
_UNBOUNDED_FILTERS = ("center", "wordwrap", "batch", "slice", "urlize", "pprint", "random")
_WIDE_FORMAT = re.compile(r"\d{5}|\*|\{[^{}]*\{")  # a width of 10,000 or more, or a computed one


class _Budget:
    def __init__(self) -> None:
        self.rounds = self.made = 0
        self.deadline = time.monotonic() + _SECONDS_LIMIT

    def charge(self, value: Any) -> None:
        if isinstance(value, (str, list, tuple)):
            self.made += len(value)
            if self.made > _MADE_LIMIT:
                raise SecurityError("it makes too much text")

    def count_round(self, literal: int) -> None:
        self.rounds += 1
        self.made += literal
        if self.rounds > _LOOP_LIMIT or self.made > _MADE_LIMIT or time.monotonic() > self.deadline:
            raise SecurityError("it loops too long")


class _Context(Context):
    """A rendering's variables plus its budget."""

    budget: _Budget

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget = _Budget()

    def derived(self, locals: dict[str, Any] | None = None) -> Context:
        context = super().derived(locals)
        assert isinstance(context, _Context)
        context.budget = self.budget
        return context


def _budget(context: Context) -> _Budget:
    assert isinstance(context, _Context)  # context_class of the only environment here
    return context.budget


class _Generation(Extension):
    """`{% generation %}`: marks the assistant's words for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """Jinja2's namespace without underscore names: a `__call__` set on one would be obeyed."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"it stores {name!r} in a namespace")


def _call(name: str, argument: nodes.Expr) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name)
    return nodes.Call(function, [nodes.ContextReference(), argument], [], None, None)


class _ChargeResults(NodeTransformer):
    """Sends the results of filters and of `~` through the environment, which counts them."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("joined", nodes.List(node.nodes)).set_lineno(node.lineno)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.node is None:  # the head of a `{% filter %}` block
            return node
        return _call("charged", node).set_lineno(node.lineno)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja2's immutable sandbox with the settings, filters and functions chat templates expect.

    Exceeding a bound raises SecurityError or OverflowError (`range`).
    """

    context_class = _Context
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=_count_output,
        )
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace
        for name in _UNBOUNDED_FILTERS:
            del self.filters[name]
        for name in ("join", "replace", "indent", "format"):
            self.filters[name] = _bounded_filter(name, self.filters[name])
        self.filters["tojson"] = _tojson

    def compile_tree(self, tree: nodes.Template) -> Template:
        """A template of the parsed `tree` (changed in place) with its costs counted."""
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            literal = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
            count = nodes.ExprStmt(_call("count_round", nodes.Const(literal)))
            body = node.body  # type: ignore[attr-defined]
            body.insert(0, count.set_lineno(node.lineno))
        _ChargeResults().visit(tree)
        return self.from_string(tree)

    @staticmethod
    def count_round(context: Context, literal: int) -> None:
        """Counts one round of a loop whose body holds `literal` characters."""
        _budget(context).count_round(literal)

    @staticmethod
    def charged(context: Context, value: Any) -> Any:
        """The result of a filter, counted."""
        _budget(context).charge(value)
        return value

    @staticmethod
    def joined(context: Context, values: list[Any]) -> str:
        """The operator `~`, bounded and counted."""
        texts = [str(value) for value in values]
        _check_size(sum(map(len, texts)))
        result = "".join(texts)
        _budget(context).charge(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, (str, list, tuple)):
            _check_size(len(left) + (len(right) if hasattr(right, "__len__") else 0))
        elif operator == "*":
            for sized, factor in ((left, right), (right, left)):
                if isinstance(sized, (str, list, tuple)) and isinstance(factor, int):
                    _check_size(len(sized) * factor)
            _check_number(left, right)
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int) and abs(right) > 64:
                raise SecurityError("it computes too large a power")
            _check_number(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        result = super().call_binop(context, operator, left, right)
        _budget(context).charge(result)
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            if name == "join" and args:
                args = (_joinable(owner, args[0]), *args[1:])
            elif name == "replace" and len(args) >= 2:
                _check_size(len(owner) + (owner.count(args[0]) * len(args[1])))
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(owner, str):
            _budget(__context).charge(result)
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in _PADDING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped


def render_bounded(template: Template, variables: Mapping[str, Any], now: datetime) -> str:
    """The text of `template` with `variables`, `raise_exception` and `strftime_now`.

    Raises whatever the template raises, SecurityError if it writes more than OUTPUT_LIMIT.
    """

    def strftime_now(format: str) -> str:
        if len(format) > 1000:
            raise SecurityError("its time format is too long")
        return now.strftime(format)

    pieces: list[str] = []
    size = 0
    own = {"raise_exception": _raise_exception, "strftime_now": strftime_now}
    for piece in template.generate({**variables, **own}):
        size += len(piece)
        if size > OUTPUT_LIMIT:
            raise SecurityError("it writes more than 16 MiB")
        pieces.append(piece)
    return "".join(pieces)


class TemplateRefusalError(TemplateError):
    """What a template says with `raise_exception`."""


def _raise_exception(message: object = "") -> None:
    raise TemplateRefusalError(str(message))


@pass_context
def _count_output(context: Context, value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    _budget(context).charge(text)
    return text


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja2's own filter sorts keys and escapes HTML, which the models never saw in training.
    if indent is not None and not 0 <= indent <= 16:
        raise SecurityError("it indents JSON by more than 16")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _check_size(size: int) -> None:
    if size > OUTPUT_LIMIT:
        raise SecurityError("it builds a value of more than 16 MiB")


def _check_number(*values: Any) -> None:
    if any(isinstance(value, int) and value.bit_length() > 4096 for value in values):
        raise SecurityError("it computes with too large a number")


def _check_format(text: str) -> None:
    if _WIDE_FORMAT.search(text):
        raise SecurityError("it pads text without limit")


def _joinable(separator: str, values: Any) -> list[Any]:
    items = list(values)
    size = len(separator) * len(items)
    _check_size(size + sum(len(item) for item in items if isinstance(item, str)))
    return items


def _bounded_filter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original` behind a look at how large its result can get; jinja2 passes eval_ctx first."""

    def bounded(*args: Any, **kwargs: Any) -> Any:
        at = 1 if hasattr(original, "jinja_pass_arg") else 0
        value, rest = args[at], [*args[at + 1 :], *kwargs.values()]
        if name == "join":
            value = list(value)
            args = (*args[:at], value, *args[at + 1 :])
            _joinable(str(rest[0]) if rest else "", value)
        elif name == "replace":
            old, new = str(rest[0]), str(rest[1])
            _check_size(len(str(value)) + str(value).count(old) * len(new))
        elif name == "indent":
            width = rest[0] if rest else 4
            lines = str(value).count("\n") + 1
            _check_size(lines * (width if isinstance(width, int) else len(str(width))))
        else:
            _check_format(str(value))
        return original(*args, **kwargs)

    if hasattr(original, "jinja_pass_arg"):
        bounded.jinja_pass_arg = original.jinja_pass_arg  # type: ignore[attr-defined]
    return bounded
