"""Texts that expressions of our packages may have as their values, read from the source without running it.

What is known only at run time becomes a placeholder: `<batch size>`. A text that is made elsewhere is followed: to a
variable, a constant, a function, a row of a table, a field, or what the callers pass.
"""

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("launcher", "rooflaunch", "workload", "analysis")
# A value of fewer words, such as a name or a number, stays a placeholder within a text.
WORDS_OF_A_SENTENCE = 3
MOST_TEXTS = 150  # of one expression
DEEPEST = 8  # calls and variables that are followed
# Names that say too little by themselves: `<zone name>`, not `<name>`.
VAGUE = {"name", "value", "title", "text", "path", "id", "code", "flag", "label", "message", "stem", "parent"}
# Functions and words that say nothing of a value: `<…>`.
MEANINGLESS = {"self", "str", "max", "min", "join", "fromkeys", "splitlines", "replace"}
BARE = re.compile(r"<[^<>]*>|")


@dataclass(frozen=True, eq=False)
class Module:
    """A parsed file of the packages; `name`: its path."""

    name: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def functions(self) -> Mapping[str, list[ast.FunctionDef]]:
        """Functions and methods by name."""
        return _by_name((node.name, node) for node in self.nodes if isinstance(node, ast.FunctionDef))

    @cached_property
    def calls(self) -> Mapping[str, list[ast.Call]]:
        """Calls by the last part of the function's name, without those of a logger."""
        calls = (node for node in self.nodes if isinstance(node, ast.Call))
        return _by_name((last(call.func), call) for call in calls if "LOGGER" not in ast.unparse(call.func))

    @cached_property
    def imported(self) -> Mapping[str, str]:
        """Module of each name of `from module import name`."""
        froms = [node for node in self.nodes if isinstance(node, ast.ImportFrom)]
        return {alias.asname or alias.name: str(node.module) for node in froms for alias in node.names}

    @cached_property
    def blocks(self) -> Mapping[ast.AST, int]:
        """The innermost list of statements around each node, below an `if` for example; not a function's own."""
        lists = [
            statements
            for node in self.nodes
            if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
            for statements in (getattr(node, "body", None), getattr(node, "orelse", None))
            if isinstance(statements, list)
        ]
        return {node: id(each) for each in lists for statement in each for node in ast.walk(statement)}

    @cached_property
    def owners(self) -> Mapping[ast.AST, ast.FunctionDef]:
        """The innermost function around each node."""
        functions = (node for node in self.nodes if isinstance(node, ast.FunctionDef))
        return {node: owner for owner in functions for part in owner.body for node in ast.walk(part)}


@dataclass(frozen=True, eq=False)
class Scope:
    """Where names are looked up: in a function of a module. `bound`: its arguments, if a call of it is followed."""

    module: Module
    function: ast.FunctionDef | None = None
    bound: Mapping[str, "Value"] = field(default_factory=dict)

    @cached_property
    def variables(self) -> Mapping[str, list[ast.expr]]:
        if self.function:
            return _assigned(itertools.chain.from_iterable(map(ast.walk, self.function.body)))
        body = self.module.tree.body
        inner = [part for node in body if isinstance(node, ast.If) for part in (*node.body, *node.orelse)]
        return _assigned([*body, *inner])

    @cached_property
    def parameters(self) -> list[str]:
        if self.function is None:
            return []
        own = self.function.args
        return [item.arg for item in (*own.posonlyargs, *own.args, *own.kwonlyargs)]


@dataclass(frozen=True)
class Value:
    """An expression, and where its names are looked up."""

    node: ast.expr
    scope: Scope


# Which of several values was chosen, by variable, test of an `if`, or function whose callers differ. A message and its
# hint share their choices, so that both are of the same case.
Chosen = Mapping[object, object]
Texts = Iterator[tuple[str, Chosen]]
Choices = Iterator[tuple[Value, Chosen]]


def _chosen(key: object, values: Iterable[Value], chosen: Chosen) -> Choices:
    """The values that agree with an earlier choice, each with the choice that it means."""
    for number, value in enumerate(values):
        if chosen.get(key, number) == number:
            yield value, {**chosen, key: number}


class Source:
    """All modules of the packages, by path."""

    def __init__(self) -> None:
        self.modules: dict[str, Module] = {}
        for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            self.modules[name] = Module(name=name, tree=ast.parse(path.read_text(encoding="utf-8")))

    @cached_property
    def methods(self) -> Mapping[str, list[Scope]]:
        """Where functions of a name are defined, for calls on an object whose class the source does not say."""
        pairs = [(name, Scope(module)) for module in self.modules.values() for name in module.functions]
        return _by_name(pairs)

    def origin(self, name: str, module: Module) -> Module | None:
        """Module from which a name is imported; None if it is not one of the packages'."""
        return self.file(module.imported.get(name, ""))

    def file(self, dotted: str) -> Module | None:
        """Module of a dotted name."""
        path = dotted.replace(".", "/")
        return self.modules.get(f"{path}.py") or self.modules.get(f"{path}/__init__.py")

    def texts(self, node: ast.expr, scope: Scope, chosen: Chosen, *, whole: bool, depth: int = 0) -> Texts:
        """Every text that an expression may be, with the choices that lead to it.

        `whole`: the expression is the whole text, so even a short value says more than a placeholder.
        """
        match node:
            case ast.Constant():
                yield str(node.value), chosen
            case ast.JoinedStr(values=parts):
                yield from self._joined(parts, scope, chosen, depth)
            case ast.BinOp(op=ast.Add(), left=left, right=right) if not (
                isinstance(right, ast.Constant) and isinstance(right.value, int)
            ):
                yield from self._joined([left, right], scope, chosen, depth)
            case ast.Call(func=ast.Attribute(value=ast.Constant() as comma, attr="join"), args=[ast.List(elts=items)]):
                yield from self._joined([part for item in items for part in (comma, item)][1:], scope, chosen, depth)
            case ast.FormattedValue(value=inner):
                yield from self.texts(inner, scope, chosen, whole=whole, depth=depth)
            case _:
                yield from self._one_of(node, scope, chosen, whole=whole, depth=depth)

    def _joined(self, parts: Sequence[ast.expr], scope: Scope, chosen: Chosen, depth: int) -> Texts:
        if not parts:
            yield "", chosen
            return
        for text, choices in self.texts(parts[0], scope, chosen, whole=False, depth=depth):
            for rest, all_choices in self._joined(parts[1:], scope, choices, depth):
                yield text + rest, all_choices

    def _one_of(self, node: ast.expr, scope: Scope, chosen: Chosen, *, whole: bool, depth: int) -> Texts:
        """Texts of the values of an expression that are worth showing, else its placeholder."""
        is_followed = depth < DEEPEST and "counted" not in ast.unparse(node)
        found = [
            found
            for value, choices in (self._values(node, scope, chosen) if is_followed else ())
            for found in itertools.islice(
                self.texts(value.node, value.scope, choices, whole=whole, depth=depth + 1), MOST_TEXTS
            )
            if found[0] or not isinstance(node, ast.BoolOp)
        ]
        alone = list(dict.fromkeys(text for text, _ in found if text))
        is_given = isinstance(node, ast.Name) and node.id in set(scope.parameters) - {*scope.variables, *scope.bound}
        if any(_words(text) >= WORDS_OF_A_SENTENCE or (whole and not BARE.fullmatch(text)) for text in alone):
            yield from found
        elif found and not is_given and all(map(_words, alone)):
            yield f"<{' or '.join(alone)}>" if len(alone) > 1 else "".join(alone), chosen
        else:
            yield placeholder(node), chosen

    def _values(self, node: ast.expr, scope: Scope, chosen: Chosen) -> Choices:
        """Values of an expression, as far as the source says them, each with the choice that it means."""
        match node:
            case ast.IfExp(test=test, body=first, orelse=second):
                yield from _chosen(
                    (scope.function, ast.unparse(test)), [Value(first, scope), Value(second, scope)], chosen
                )
            case ast.BoolOp(op=ast.Or(), values=values):
                yield from ((Value(value, scope), chosen) for value in values)
            case ast.Name(id=name):
                yield from self.named(name, scope, chosen)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                yield from ((value, chosen) for value in self._returned(name, node, scope))
                yield from self._assigned_to_field(name, scope.module, chosen)
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                yield from self._field(owner, name, scope, chosen)
            case ast.Call():
                yield from self._called(node, scope, chosen)
            case ast.Subscript(
                value=ast.Call(func=ast.Name(id=name)) as call, slice=ast.Constant(value=int() as place)
            ):
                rows = [row for row in self._returned(name, call, scope) if isinstance(row.node, ast.Tuple)]
                parts = [Value(row.node.elts[place], row.scope) for row in rows if isinstance(row.node, ast.Tuple)]
                yield from _chosen((call, "returned"), parts, chosen)
            case ast.Subscript(value=ast.Name(id=table)):
                yield from self._in_table(table, scope, chosen)

    def _called(self, call: ast.Call, scope: Scope, chosen: Chosen) -> Choices:
        match call.func:
            case ast.Attribute(value=ast.Name(id="self"), attr=name) | ast.Name(id=name):
                yield from ((value, chosen) for value in self._returned(name, call, scope))
            case ast.Attribute(value=ast.Name(id=table), attr="get"):
                yield from self._in_table(table, scope, chosen)
            case ast.Attribute(value=template, attr="format"):
                for text, choices in self.texts(template, scope, chosen, whole=True):
                    yield Value(ast.Constant(re.sub(r"\{\w*\}", "<…>", text)), scope), choices
            case ast.Attribute(attr=name) if len(self.methods.get(name, ())) == 1:
                [value] = self.methods[name]
                yield from ((part, chosen) for part in self._returned(name, call, value))

    def _in_table(self, table: str, scope: Scope, chosen: Chosen) -> Choices:
        """Values of a dictionary that a variable has."""
        for value, choices in self.named(table, scope, chosen):
            for node in ast.walk(value.node):
                if isinstance(node, ast.Dict):
                    yield from ((Value(text, value.scope), choices) for text in node.values)
                elif isinstance(node, ast.DictComp):
                    yield Value(node.value, value.scope), choices

    def _field(self, owner: str, name: str, scope: Scope, chosen: Chosen) -> Choices:
        """A constant of an imported module, or a field of the objects that a variable may have."""
        if other := self.file(f"{scope.module.imported.get(owner)}.{owner}"):
            yield from self.named(name, Scope(other), chosen)
        for row, choices in self._made(owner, scope, chosen):
            for keyword in row.node.keywords if isinstance(row.node, ast.Call) else ():
                if keyword.arg == name:
                    yield Value(keyword.value, row.scope), choices

    def _made(self, name: str, scope: Scope, chosen: Chosen) -> Choices:
        """Calls that make the object of a variable, also if a function returns it."""
        for value, choices in self.named(name, scope, chosen):
            rows = []
            if isinstance(value.node, ast.Call) and isinstance(value.node.func, ast.Name):
                rows = list(self._returned(value.node.func.id, value.node, value.scope))
            yield from _chosen((value.node, "returned"), rows, choices) if rows else iter([(value, choices)])

    def _assigned_to_field(self, name: str, module: Module, chosen: Chosen) -> Choices:
        """Values that functions of the module assign to a field of this name, whatever the object."""
        scopes = [Scope(module, node) for node in module.nodes if isinstance(node, ast.FunctionDef)]
        places = [(scope, number) for scope in scopes for number, _ in enumerate(scope.variables.get(f".{name}", ()))]
        key = (module, "fields")  # `why` and `hint` are assigned side by side
        for scope, number in places:
            if chosen.get(key, (scope.function, number)) == (scope.function, number):
                yield Value(scope.variables[f".{name}"][number], scope), {**chosen, key: (scope.function, number)}

    def named(self, name: str, scope: Scope, chosen: Chosen) -> Choices:
        """Values of a variable: of the function, an argument, a constant of the module, or an imported one."""
        if name in scope.variables:
            values = [value for node in scope.variables[name] for value in self._unpacked(node, scope)]
            values = [value for value in values if name not in map(last, ast.walk(value.node))]
            rows = {ast.unparse(node.value) for node in scope.variables[name] if isinstance(node, ast.Subscript)}
            for value, choices in _chosen((scope.function, rows.pop() if rows else name), values, chosen):
                block, key = scope.module.blocks.get(value.node), (scope.function, "block")
                others = {scope.module.blocks.get(other.node) for other in values} - {None}
                # Message and hint that are assigned side by side belong together.
                if key not in chosen or chosen[key] == block or chosen[key] not in others:
                    yield value, {key: block, **choices} if block else choices
        elif name in scope.bound:
            yield scope.bound[name], chosen
        elif name in scope.parameters and scope.function:
            yield from self._passed(name, scope.function, scope.module, chosen)
        elif scope.function:
            yield from self.named(name, Scope(scope.module), chosen)
        elif other := self.origin(name, scope.module):
            yield from self.named(name, Scope(other), chosen)

    def _unpacked(self, node: ast.expr, scope: Scope) -> Iterator[Value]:
        """The value itself; of `*rows` and of `next(row for row in rows)` every row of the constant `rows`.

        `(*rows)[1]` is the second cell of every row.
        """
        match node:
            case ast.Subscript(value=ast.Starred() as rows, slice=ast.Constant(value=int() as place)):
                for row in self._unpacked(rows, scope):
                    if isinstance(row.node, ast.Tuple):
                        yield Value(row.node.elts[place], row.scope)
            case (
                ast.Starred(value=ast.Name(id=rows))
                | ast.Call(
                    func=ast.Name(id="next"),
                    args=[ast.GeneratorExp(generators=[ast.comprehension(iter=ast.Name(id=rows))]), *_],
                )
            ):
                for value, _ in self.named(rows, scope, {}):
                    if isinstance(value.node, ast.Tuple | ast.List):
                        yield from (Value(row, value.scope) for row in value.node.elts)
            case ast.Starred():
                pass
            case _:
                yield Value(node, scope)

    def _passed(self, name: str, function: ast.FunctionDef, module: Module, chosen: Chosen) -> Choices:
        """What callers pass for a parameter: those in the module, and where the function is imported by its name."""
        for other in self.modules.values():
            if other is module or self.origin(function.name, other) is module:
                for call in other.calls.get(function.name, ()):
                    given = arguments(function, call, Scope(other, other.owners.get(call)))
                    if name in given and chosen.get(function, call) is call:
                        yield given[name], {**chosen, function: call}

    def _returned(self, name: str, node: ast.expr, scope: Scope) -> Iterator[Value]:
        """What a function of the module, or one that it imports, returns."""
        module = scope.module if name in scope.module.functions else self.origin(name, scope.module)
        if module is None:
            return
        for function in module.functions.get(name, [])[:1]:
            inner = Scope(module, function, arguments(function, node, scope) if isinstance(node, ast.Call) else {})
            for part in ast.walk(function):
                if isinstance(part, ast.Return) and part.value is not None:
                    yield Value(part.value, inner)


def last(node: ast.AST) -> str:
    """The last part of a dotted name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _by_name(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    found = defaultdict[str, list[Any]](list)
    for name, item in pairs:
        found[name].append(item)
    return found


def _assigned(nodes: Iterable[ast.AST]) -> Mapping[str, list[ast.expr]]:
    """Values of each variable, in order; `.name` is a field of any object. A loop's variable has the value `*rows`."""
    pairs = list[tuple[ast.expr, ast.expr]]()
    for node in nodes:
        match node:
            case ast.Assign():
                pairs += [(target, node.value) for target in node.targets]
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                pairs.append((target, value))
            case ast.For(target=target, iter=rows) | ast.comprehension(target=target, iter=rows):
                pairs.append((target, ast.Starred(rows)))
    return _by_name(itertools.chain.from_iterable(itertools.starmap(_targets, pairs)))


def _targets(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Each name of an assignment with its value."""
    match target, value:
        case (ast.Name(), _):
            yield last(target), value
        case (ast.Attribute(attr=name), _):
            yield f".{name}", value
        case (ast.Subscript(value=ast.Name(id=table), slice=key), _):
            yield table, ast.Dict([key], [value])
        case (ast.Tuple(elts=targets), ast.Tuple(elts=values)):
            yield from itertools.chain.from_iterable(map(_targets, targets, values))
        case (ast.Tuple(), ast.IfExp(body=first, orelse=second)):
            yield from (*_targets(target, first), *_targets(target, second))
        case (ast.Tuple(elts=targets), ast.Call() | ast.Starred()):
            for number, part in enumerate(targets):
                yield from _targets(part, ast.Subscript(value, ast.Constant(number)))


def arguments(function: ast.FunctionDef, call: ast.Call, scope: Scope) -> dict[str, Value]:
    """Arguments of a call by parameter, defaults included."""
    own = function.args
    positional = [item.arg for item in (*own.posonlyargs, *own.args)]
    defaults = dict(zip(reversed(positional), reversed(own.defaults), strict=False))
    defaults |= {item.arg: value for item, value in zip(own.kwonlyargs, own.kw_defaults, strict=True) if value}
    if positional[:1] in (["self"], ["cls"]):
        del positional[0]
    given = dict(zip(positional, call.args, strict=False))
    given |= {str(keyword.arg): keyword.value for keyword in call.keywords}
    return {name: Value(node, scope) for name, node in (defaults | given).items()}


def placeholder(node: ast.expr) -> str:
    """What stands for an expression on the page: `<batch size>`."""
    match node:
        case ast.Call(func=ast.Name(id="counted"), args=[count, ast.Constant(value=str() as noun), *_]):
            text = f"{placeholder(count)} {noun}s"
        case ast.Call(func=ast.Name(id="len")):
            text = "<number>"
        case (
            ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str() as key), *_])
            | ast.Subscript(slice=ast.Constant(value=str() as key))
        ):
            text = f"<{key}>".replace("_", " ")
        case ast.Call(func=ast.Attribute(attr="join"), args=[ast.GeneratorExp(generators=parts)]):
            text = placeholder(parts[0].iter)
        case ast.Call(func=ast.Name(id="map"), args=[_, inner]):
            text = placeholder(inner)
        case (
            ast.Call(args=[ast.Name() | ast.Attribute() | ast.Call() | ast.Subscript() as inner, *_])
            | ast.Call(func=ast.Attribute(value=inner, attr="strip" | "rstrip" | "partition" | "as_posix" | "resolve"))
            | ast.Call(func=inner)
            | ast.Subscript(value=inner)
            | ast.Starred(value=inner)
        ):
            text = placeholder(inner)
        case ast.Attribute(value=ast.Name() | ast.Attribute() as owner, attr=name) if name in VAGUE - {last(owner)}:
            text = f"<{last(owner).removeprefix('self')} {name}>".replace("_", " ").replace("< ", "<").lower()
        case ast.Name() | ast.Attribute() if last(node) not in MEANINGLESS:
            text = f"<{last(node).strip('_').replace('_', ' ').lower()}>"
        case _:
            text = "<…>"
    return text


def _words(text: str) -> int:
    """Number of words that the source has; placeholders and addresses are none."""
    without = re.sub(r"<[^<>]*>|\S*://\S*", "", text)
    return sum(bool(re.search("[A-Za-z]{2}", word)) for word in without.split())
