"""Lists the mutants of a module: each changes one condition, operator, number or statement.

Only bodies of functions have mutants. Docstrings, annotations, decorators, default values, texts,
log lines and the arguments of a raised exception have none.
"""

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

SWAPPED: dict[type, type[Any]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
UNCHANGED_FIELDS = {"annotation", "exc", "pattern"}
LOGGERS = {"log", "_log", "logger", "_logger"}
UNCHANGED_CALLS = {"assert_never", "cast"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Mutant(NamedTuple):
    """One change of a module: *new* in place of *old*, which a field of *parent* holds.

    *index* is the place of *old* in the field if the field is a list. *new* is None if the mutant
    lacks *old*. *statement* is the statement around *old*.
    """

    parent: ast.AST
    field: str
    index: int | None  # type: ignore[assignment]  # hides a method of tuples that nothing calls
    old: Any
    new: Any
    statement: Any

    def lines(self) -> list[set[int]]:
        """Return the lines that a test must run to notice the mutant, the best first."""
        statement, node = self.statement, self.old
        header = getattr(statement, "body", None)
        last = header[0].lineno - 1 if header else statement.end_lineno
        own = () if not hasattr(node, "lineno") else range(node.lineno, node.end_lineno + 1)
        return [set(own), set(range(statement.lineno, max(last, statement.lineno) + 1))]

    def apply(self) -> None:
        """Change the tree of the module."""
        container = getattr(self.parent, self.field)
        new = self.new
        if isinstance(new, ast.stmt):  # a function keeps its `yield` and its closure
            new = ast.If(ast.Constant(False), [self.old], [new])
        elif isinstance(new, ast.Constant) and not isinstance(self.old, ast.Constant):
            new = ast.IfExp(ast.Constant(False), self.old, new)  # likewise
        if new is not None:
            ast.fix_missing_locations(ast.copy_location(new, self.old))
        if self.index is None:
            setattr(self.parent, self.field, new)
        elif new is None:
            del container[self.index]
        else:
            container[self.index] = new

    def __str__(self) -> str:
        if isinstance(self.old, ast.match_case):
            return f"`case {ast.unparse(self.old.pattern)}` removed"
        old = ast.unparse(self.old).replace("\n", " ")
        if self.new is None or isinstance(self.new, ast.Pass):
            return f"`{old}` removed"
        return f"`{old}` → `{ast.unparse(self.new)}`"


def mutants_of(tree: ast.Module) -> Iterator[Mutant]:
    """Return the mutants of the functions in the tree."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef)):
            for function in node.body:
                if isinstance(function, FUNCTIONS):
                    yield from _in_function(function)


def _in_function(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Mutant]:
    for index, statement in enumerate(function.body):
        yield from _in_node(function, "body", index, statement, statement)


def _in_node(
    parent: ast.AST, field: str, index: int | None, node: ast.AST, statement: ast.AST
) -> Iterator[Mutant]:
    if _is_unchanged(node) or isinstance(node, ast.ClassDef):
        return
    if isinstance(node, FUNCTIONS):
        yield from _in_function(node)
        return
    statement = node if isinstance(node, ast.stmt) else statement
    for new in _replacements(parent, field, node):
        yield Mutant(parent, field, index, node, new, statement)
    for name, value in ast.iter_fields(node):
        if name in UNCHANGED_FIELDS or (name == "args" and isinstance(node, ast.Lambda)):
            continue
        if isinstance(value, ast.AST):
            yield from _in_node(node, name, None, value, statement)
        elif isinstance(value, list):
            for place, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield from _in_node(node, name, place, item, statement)


def _is_unchanged(node: ast.AST) -> bool:
    """Return whether nobody can notice a change of the node: a text, a log line."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr() | ast.Assert():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in LOGGERS
        case ast.Call(func=ast.Name(id=name)):
            return name in UNCHANGED_CALLS
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):  # a union of types
            return _is_type(left) or _is_type(right)
        case _:
            return False


def _is_type(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name[0].isupper() or name in {"str", "bytes", "int", "float", "list", "dict"}
        case ast.Constant(value=None):
            return True
        case _:
            return False


def _replacements(parent: ast.AST, field: str, node: ast.AST) -> Iterator[ast.AST | None]:
    if field in {"test", "ifs", "guard"} and not isinstance(node, ast.Constant):
        yield ast.Constant(False)
        if not isinstance(parent, ast.While):
            yield ast.Constant(True)
    if isinstance(node, ast.stmt):
        yield from _other_statements(node)
    else:
        yield from _other_operators(node)
        yield from _other_values(node)


def _other_statements(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield ast.Pass()
        case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Raise() | ast.Continue():
            yield ast.Pass()
        case ast.Break():
            yield ast.Pass()
        case _:
            pass


def _other_operators(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=values):
            for index, operator in enumerate(ops):
                swapped = [*ops[:index], SWAPPED[type(operator)](), *ops[index + 1 :]]
                yield ast.Compare(left, swapped, values)
        case ast.BinOp(left=left, op=operator, right=right) if not _joins_text(node):
            if type(operator) in SWAPPED:
                yield ast.BinOp(left, SWAPPED[type(operator)](), right)
        case ast.BoolOp(values=[first, second]):
            yield from (second, first)
        case ast.BoolOp(op=operator, values=values):
            for index in range(len(values)):
                yield ast.BoolOp(operator, values[:index] + values[index + 1 :])
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case _:
            pass


def _other_values(node: ast.AST) -> Iterator[ast.expr | None]:
    match node:
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.keyword(arg=str()) | ast.match_case(pattern=ast.MatchClass() | ast.MatchValue()):
            yield None
        case _:
            pass


def _joins_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, (str, bytes)))
        for side in (node.left, node.right)
    )
