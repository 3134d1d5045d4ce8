"""Keeps a break inside `with`, `try` or a loop from making the function around it eager.

Dynamo compiles on both sides of a break, but cannot begin again in the middle of such a statement,
and then runs the whole function eagerly. Here the statement becomes a function of its own that is
not compiled (what it calls is), so that the break is the call of that function, and Dynamo compiles
on both sides of it. The function's code is replaced while the training lasts; it does the same, and
its lines keep their numbers.
"""

from __future__ import annotations

import ast
import gc
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ljtrain import compile_backend

RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
CANNOT_RESUME = (ast.With, ast.Try, ast.For, ast.While)
NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
# Where a statement is more than its own variables can tell.
REFUSED = (
    ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.Delete, ast.NamedExpr,
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom,
)  # fmt: skip
READ_THE_FRAME = ("super", "locals", "vars", "exec", "eval", "__class__")
PREFIX = "__ljtrain_outlined"
KINDS: dict[type[ast.stmt], str] = {
    ast.With: "`with`",
    ast.Try: "`try`",
    ast.For: "loop",
    ast.While: "loop",
}

causes = compile_backend.outlined
_outlined: dict[types.FunctionType, set[int]] = {}  # lines of the statements
_undo: list[Callable[[], None]] = []


@dataclass(frozen=True)
class Failed:
    """A frame that Dynamo gave up: its function, and the line that it could not do."""

    file: str
    name: str
    first_line: int
    line: int
    cause: str


@contextmanager
def failures() -> Iterator[list[Failed]]:
    """Fills the list, at the end, with the frames that Dynamo gave up meanwhile."""
    from torch._dynamo import utils

    found: list[Failed] = []
    before = utils.get_compilation_metrics()
    known = {id(entry) for entry in before}
    yield found
    for entry in utils.get_compilation_metrics():
        file, line = entry.co_filename, entry.fail_user_frame_lineno
        if id(entry) in known or not entry.fail_type or not file or not line:
            continue
        if any(part in file for part in compile_backend.NOT_THE_USERS):
            continue
        resumed = RESUMED.fullmatch(entry.co_name or "")
        name = resumed[1] if resumed else entry.co_name or ""
        inside = line if entry.fail_user_frame_filename == file else 0
        cause = compile_backend.explained(entry.fail_reason or "")
        found.append(Failed(file, name, entry.co_firstlineno or 0, inside, cause))


def mend(failed: list[Failed]) -> bool:
    """Whether a function was changed, so that compiling again is worth it."""
    changed = False
    for frame in failed:
        for function in _functions(frame):
            changed |= _outline(function, frame)
    return changed


def restore() -> None:
    while _undo:
        _undo.pop()()
    _outlined.clear()
    causes.clear()


def _functions(frame: Failed) -> list[types.FunctionType]:
    """The functions that a frame can have been of, by name and place."""
    line = frame.line or frame.first_line
    return [
        function
        for function in gc.get_objects()
        if type(function) is types.FunctionType
        and function.__code__.co_name == frame.name
        and function.__code__.co_filename == frame.file
        and _spans(function.__code__, line, frame.first_line)
    ]


def _spans(code: types.CodeType, *lines: int) -> bool:
    numbers = [number for _, _, number in code.co_lines() if number]
    return any(code.co_firstlineno <= line <= max(numbers) for line in lines)


# ---- the statement ----


def _outline(function: types.FunctionType, frame: Failed) -> bool:
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        return False
    ast.increment_lineno(tree, max(first, 1) - 1)
    body = tree.body[0]
    if not isinstance(body, ast.FunctionDef) or _mangles(body):
        return False
    known = _outlined.setdefault(function, set())
    statements = _statements(body.body)
    chosen = [each for each in statements if each.covers(frame.line)]
    if not chosen:  # the line is in a function that is called from here
        chosen = [each for each in statements if each.calls()]
    chosen = [each for each in chosen if each.first.lineno not in known]
    if not chosen:
        return False
    # From the source again, so what was outlined before has to be again.
    again = [each for each in statements if each.first.lineno in known]
    changed = False
    for place in [*again, *chosen]:
        line = place.first.lineno
        if _replace(function, body, place, frame.cause):
            changed |= line not in known
            known.add(line)
    return changed and _install(function, body)


@dataclass
class Place:
    """A statement in the list of statements that holds it, and what comes before that list."""

    within: list[ast.stmt]
    first: ast.stmt
    before: list[ast.stmt]

    def covers(self, line: int) -> bool:
        return self.first.lineno <= line <= (self.first.end_lineno or 0)

    def calls(self) -> bool:
        return any(isinstance(node, ast.Call) for node in ast.walk(self.first))


def _statements(body: list[ast.stmt], before: list[ast.stmt] | None = None) -> list[Place]:
    """Outermost statements in which Dynamo cannot begin again."""
    found: list[Place] = []
    before = list(before or [])
    for statement in body:
        if isinstance(statement, CANNOT_RESUME):
            found.append(Place(body, statement, list(before)))
        elif isinstance(statement, ast.If):
            found += _statements(statement.body, before)
            found += _statements(statement.orelse, before)
        before.append(statement)
    return found


def _mangles(body: ast.AST) -> bool:
    """Whether names depend on the class around the function."""
    names = [n.attr for n in ast.walk(body) if isinstance(n, ast.Attribute)]
    names += [n.id for n in ast.walk(body) if isinstance(n, ast.Name)]
    return any(name.startswith("__") and not name.endswith("__") for name in names)


def _names(nodes: list[Any], context: type[ast.expr_context]) -> list[str]:
    found = [
        node.id
        for each in nodes
        for node in ast.walk(each)
        if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    ]
    if context is ast.Store:
        found += [
            node.name
            for each in nodes
            for node in ast.walk(each)
            if isinstance(node, ast.ExceptHandler) and node.name
        ]
    return list(dict.fromkeys(found))


def _bound(arguments: ast.arguments, before: list[ast.stmt]) -> set[str]:
    """Names that surely have a value behind these statements."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    simple = [
        each
        for each in before
        if isinstance(each, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.With)
    ]
    defined = {each.name for each in before if isinstance(each, ast.FunctionDef)}
    return {each.arg for each in every} | set(_names(simple, ast.Store)) | defined


def _replace(function: types.FunctionType, body: ast.FunctionDef, place: Place, cause: str) -> bool:
    """Puts the call of a function in the statement's place."""
    statement = place.first
    code = function.__code__
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    stored = [name for name in _names([statement], ast.Store) if name in own]
    loaded = [name for name in _names([statement], ast.Load) if name in own]
    bound = _bound(body.args, place.before) | set(code.co_freevars)
    maybe = set(_names(place.before, ast.Store)) - bound
    mentioned = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
    if (
        any(isinstance(node, REFUSED) for node in ast.walk(statement))
        or mentioned & set(READ_THE_FRAME)
        or maybe & {*stored, *loaded}
        or {*code.co_cellvars, *code.co_freevars} & set(stored)
    ):
        return False
    inputs = [name for name in dict.fromkeys([*loaded, *stored]) if name in bound]
    inside = {id(node) for node in ast.walk(statement)}
    later = {
        node.id
        for node in ast.walk(body)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in inside
    }
    outputs = [name for name in stored if name in later]
    name = f"{PREFIX}_{len(_undo)}_{statement.lineno}"
    returns = _own_returns(statement)
    _define(function, name, statement, (inputs, outputs))
    text = f"{PREFIX} = {name}({', '.join(inputs)})\n"
    if returns:
        text += f"if {PREFIX}[0]:\n    return {PREFIX}[1]\n"
    if outputs:
        text += f"({', '.join(outputs)},) = {PREFIX}[2]\n"
    call = ast.parse(text).body
    for each in call:
        for node in ast.walk(each):
            ast.copy_location(node, statement)
            if hasattr(node, "lineno"):
                node.lineno = node.end_lineno = statement.lineno  # type: ignore[attr-defined]
    at = place.within.index(statement)
    place.within[at : at + 1] = call
    file = code.co_filename
    kind = next(name for node, name in KINDS.items() if isinstance(statement, node))
    causes.setdefault((file, statement.lineno), f"{cause} (inside a {kind})")
    return True


def _own_returns(statement: ast.stmt) -> list[ast.Return]:
    found: list[ast.Return] = []
    waiting: list[Any] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return):
            found.append(node)
        if not isinstance(node, NESTED):
            waiting += ast.iter_child_nodes(node)
    return found


def _define(
    function: types.FunctionType,
    name: str,
    statement: ast.stmt,
    variables: tuple[list[str], list[str]],
) -> None:
    """The statement as a global function that returns (whether it returned, what, variables)."""
    inputs, outputs = variables
    fresh = [each for each in outputs if each not in inputs]
    for each in _own_returns(statement):
        value = each.value or ast.Constant(None)
        each.value = ast.Tuple([ast.Constant(True), value, ast.Constant(None)], ast.Load())
    text = f"def {name}({', '.join(inputs)}):\n"
    text += "".join(f"    {each} = None\n" for each in fresh)
    text += f"    pass\n    return False, None, ({''.join(each + ', ' for each in outputs)})\n"
    tree = ast.parse(text)
    made: Any = tree.body[0]
    made.body.insert(-1, statement)
    own = {id(node) for node in ast.walk(statement)}
    node: Any
    for node in ast.walk(tree):
        if hasattr(node, "lineno") and id(node) not in own:
            node.lineno = node.end_lineno = statement.lineno
    scope: dict[str, Any] = {}
    exec(_compiled(tree, function.__code__), scope)
    outlined = types.FunctionType(scope[name].__code__, function.__globals__, name)
    function.__globals__[name] = torch._dynamo.disable(outlined, recursive=False)
    _undo.append(lambda: function.__globals__.pop(name, None))


def _compiled(tree: ast.Module, code: types.CodeType) -> types.CodeType:
    ast.fix_missing_locations(tree)
    compiled: types.CodeType = compile(tree, code.co_filename, "exec", dont_inherit=True)
    return compiled


def _install(function: types.FunctionType, body: ast.FunctionDef) -> bool:
    """Gives the function the new code, with the same closure and defaults."""
    before = function.__code__
    body.decorator_list, body.returns = [], None
    body.args.defaults, body.args.kw_defaults = [], [None] * len(body.args.kwonlyargs)
    for argument in ast.walk(body.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    around: Any = ast.parse(f"def {PREFIX}({', '.join(before.co_freevars)}): pass\n").body[0]
    around.body = [body, ast.Return(ast.Name(body.name, ast.Load()))]
    scope: dict[str, Any] = {}
    exec(_compiled(ast.Module([around], []), before), scope)
    made = scope[PREFIX](*(None for _ in before.co_freevars)).__code__
    if made.co_freevars != before.co_freevars:
        return False
    # Not co_firstlineno, which is where the table of lines begins.
    function.__code__ = made.replace(co_name=before.co_name, co_qualname=before.co_qualname)

    def back() -> None:
        function.__code__ = before

    _undo.append(back)
    return True
