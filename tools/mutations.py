"""Small changes to Python code, each of which a good test should notice.

What is changed, one place at a time:

    comparison     <  to  <=,  ==  to  !=,  is  to  is not,  in  to  not in, ...
    arithmetic     +  to  -,  *  to  /,  **  to  *, ...
    boolean        and  to  or;  not x  to  x;  the condition of an if to its opposite
    constant       a number to the next one, True to False
    statement      a call, a raise, an assignment to an attribute or an entry: left out
    arguments      the first two of a call: swapped

Left alone are annotations, decorators, docstrings, messages of errors and of the log, and the
strictness of zip: no test of behaviour is meant to notice them.
"""

import ast
from dataclasses import dataclass

__all__ = ["Mutation", "mutations_of"]

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
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
}

_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


_SYMMETRIC = {"max", "min", "samestat"}  # functions that do not mind the order of their arguments


@dataclass(frozen=True)
class Mutation:
    """A change of one place in a source text.

    Attributes:
        place: the function it is in, with its class; "" at the top of the module.
        line: the line that it begins on.
        numbers: of the lines that the statement around it begins with, up to its body if it has
            one.
        before: what stands there, on one line.
        after: what takes its place.
        begin, end: the bytes of the source that are replaced, in UTF-8.
    """

    place: str
    line: str
    numbers: range
    before: str
    after: str
    begin: int
    end: int

    def in_words(self) -> str:
        """The change on one line; of something short also the line that it is on."""
        where = f" in {self.line}" if len(self.before) < 20 else ""
        return f"{self.place}: {self.before} → {self.after}{where}"

    def put_into(self, source: str) -> str:
        """The source with this change."""
        text = source.encode()
        return (text[: self.begin] + self.after.encode() + text[self.end :]).decode()


def mutations_of(source: str) -> list[Mutation]:
    """All changes of this source, in the order of their places.

    >>> [(change.before, change.after) for change in mutations_of("x = 1 < y")]
    [('1 < y', '(1 <= y)'), ('1', '2')]
    """
    return _Finder(source).found()


class _Finder(ast.NodeVisitor):
    def __init__(self, source: str) -> None:
        self._tree = ast.parse(source)
        self._text = source.encode()
        self._lines = self._text.splitlines(keepends=True)
        self._line_begins = [0]
        for line in self._lines:
            self._line_begins.append(self._line_begins[-1] + len(line))
        self._places: list[str] = []
        self._numbers = range(0)
        self._mutations: list[Mutation] = []

    def found(self) -> list[Mutation]:
        self.visit(self._tree)
        distinct = dict.fromkeys(self._mutations)
        return sorted(distinct, key=lambda change: (change.begin, -change.end, change.after))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            assert node.end_lineno is not None
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno
            self._numbers = range(node.lineno, max(node.lineno, end) + 1)
        super().visit(node)

    # Where nothing is changed.

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._places.append(node.name)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self._places.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._places.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._places.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._drop_if_stored(node, node.target)
        if node.value is not None:
            self.visit(node.value)

    def visit_keyword(self, node: ast.keyword) -> None:
        """``strict=True`` says what cannot happen."""
        if node.arg != "strict":
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Words."""

    # Statements that are left out.

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace(node, "pass")

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or _is_log(node.value):
            return
        if isinstance(node.value, ast.Call):
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._drop_if_stored(node, node.targets[0])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace(node, "pass")
        self.generic_visit(node)

    def _drop_if_stored(self, node: ast.stmt, target: ast.expr) -> None:
        """A name that is not set would only be missed by name."""
        if isinstance(target, ast.Attribute | ast.Subscript):
            self._replace(node, "pass")

    # Expressions.

    def visit_Compare(self, node: ast.Compare) -> None:
        for position, operator in enumerate(node.ops):
            changed = list(node.ops)
            changed[position] = _COMPARISONS[type(operator)]()
            self._replace(node, ast.Compare(node.left, changed, node.comparators))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = _ARITHMETIC.get(type(node.op))
        if other is not None:
            self._replace(node, ast.BinOp(node.left, other(), node.right))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._replace(node, ast.BoolOp(other, node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._replace(node, node.operand)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        """Conditions that no other change turns round."""
        if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            self._replace(test, ast.UnaryOp(ast.Not(), test))

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._replace(node, repr(node.value + 1))

    def visit_Call(self, node: ast.Call) -> None:
        starred = any(isinstance(argument, ast.Starred) for argument in node.args[:2])
        name = ast.unparse(node.func).rpartition(".")[2]
        if len(node.args) >= 2 and not starred and name not in _SYMMETRIC:
            swapped = [node.args[1], node.args[0], *node.args[2:]]
            self._replace(node, ast.Call(node.func, swapped, node.keywords))
        self.generic_visit(node)

    def _replace(self, node: ast.expr | ast.stmt, after: ast.expr | str) -> None:
        begin = self._line_begins[node.lineno - 1] + node.col_offset
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        end = self._line_begins[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(self._text[begin:end].decode().split())
        text = after if isinstance(after, str) else f"({ast.unparse(after)})"
        line = self._lines[node.lineno - 1].decode().strip()
        place = ".".join(self._places)
        change = Mutation(place, line, self._numbers, before, text, begin, end)
        self._mutations.append(change)


def _is_log(value: ast.expr) -> bool:
    """Whether this is a call such as ``log.warning(...)``."""
    called = value.func if isinstance(value, ast.Call) else None
    if not isinstance(called, ast.Attribute):
        return False
    return isinstance(called.value, ast.Name) and called.value.id == "log"
