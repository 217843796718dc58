"""
What no source of ours may do: put a value into SQL or Lua, read bytes as code, compare a secret by an operator.

Each rule is a function of a syntax tree, and is shown a planted bug beside the real sources.
"""

import ast
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The test bed starts servers for tests and is not published; it quotes the names that it puts into its statements.
_PUBLISHED = ("packages/core/src", "packages/store-postgres/src", "packages/store-valkey/src", "apps/cat-store/src")
SOURCES = [path for folder in _PUBLISHED for path in sorted((ROOT / folder).rglob("*.py"))]

Rule = Callable[[ast.AST], Iterator[ast.AST]]


@cache
def _tree(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


def _found(rule: Rule, allowed: frozenset[str] = frozenset()) -> list[str]:
    found = []
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        if name not in allowed:
            found += [f"{name}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}" for node in rule(_tree(path))]
    return found


def _planted(rule: Rule, source: str) -> int:
    return len(list(rule(ast.parse(source))))


def test_the_sources_were_looked_at() -> None:
    assert len(SOURCES) > 150
    assert {"lock_store.py", "idempotency_store.py", "token.py", "_guard.py"} <= {path.name for path in SOURCES}


# ------------------------------------------------------------------------------------------- injection


_STATEMENT = re.compile(
    r"\b(SELECT\s|INSERT\s+INTO|UPDATE\s+\S+\s+SET|DELETE\s+FROM|CREATE\s+\w|DROP\s+\w|ALTER\s+\w|TRUNCATE\s|GRANT\s"
    r"|COPY\s+\w|redis\.(p?call|sha1hex)|ARGV\[|KEYS\[)"
)

# Where a value stands in the text of a statement all the same, and why it may.
_SENTENCES = frozenset({
    # What a person is told to run, in a finding; the names are quoted as in the statements, and nothing of it is run.
    "packages/store-postgres/src/tenure_postgres/startup_check.py",
    # The storage parameters of a table definition: constants of the package, in DDL for the application's migrations.
    "packages/store-postgres/src/tenure_postgres/table.py",
})  # fmt: skip


def _texts(node: ast.AST) -> str:
    return "".join(
        each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )


def built_statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Find texts with SQL or Lua in them that are put together from values."""
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=values):
                values_in_it = any(isinstance(value, ast.FormattedValue) for value in values)
                if values_in_it and _STATEMENT.search(_texts(node)):
                    yield node
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format" | "join" | "replace")):
                if _STATEMENT.search(text):
                    yield node
            case ast.BinOp(op=ast.Mod() | ast.Add()):
                if _STATEMENT.search(_texts(node)):
                    yield node
            case _:
                pass


_SINKS = frozenset({"execute", "exec_driver_sql", "fetch", "fetchrow", "fetchval", "prepare", "text", "DDL", "eval"})


def built_where_it_is_run(tree: ast.AST) -> Iterator[ast.AST]:
    """Find calls that run a statement put together in the call itself, whatever the statement says."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and _called(node) in _SINKS:
            match node.args[0]:
                case ast.JoinedStr() | ast.BinOp(op=ast.Mod() | ast.Add()):
                    yield node
                case ast.Call(func=ast.Attribute(attr="format" | "format_map")):
                    yield node
                case _:
                    pass


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def test_no_value_is_put_into_the_text_of_a_statement_or_a_script() -> None:
    assert not _found(built_statements, _SENTENCES)


def test_nothing_that_is_run_is_put_together_in_its_call() -> None:
    # The storage parameters, and what the start-up check asks: both have facts of their own.
    assert not _found(built_where_it_is_run, _SENTENCES)


def test_the_start_up_check_runs_what_is_in_its_files_and_none_of_its_sentences() -> None:
    """Its f-strings are for a person. But one: a mark in a comment, drawn at random, to find its own session by."""
    path = ROOT / "packages/store-postgres/src/tenure_postgres/startup_check.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    built = [ast.unparse(node) for node in built_where_it_is_run(tree)]
    assert len(built) == 1
    assert "/* {mark} */" in built[0]
    assert re.search(r"mark = .*secrets\.token_hex\(\d+\)", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "source",
    [
        "connection.execute(f'DELETE FROM {table} WHERE key = $1')",
        "q = 'SELECT token FROM locks WHERE key = %s' % key",
        "q = 'DELETE FROM locks WHERE key = ' + key",
        "q = 'SELECT {} FROM locks'.format(column)",
        "script = f\"return redis.call('get', '{key}')\"",
    ],
)
def test_planted_a_value_in_a_statement_is_found(source: str) -> None:
    assert _planted(built_statements, source) == 1


@pytest.mark.parametrize("source", ["c.execute(f'SET x = {y}')", "c.fetchval('VALUES (%s)' % y)", "text(begin + end)"])
def test_planted_a_statement_put_together_where_it_is_run_is_found(source: str) -> None:
    assert _planted(built_where_it_is_run, source) == 1


# ------------------------------------------------------------------------------------- deserialisation


_READS_CODE = frozenset(
    {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml"}
)
_RUNS_CODE = frozenset({"eval", "exec", "compile", "__import__"})


def bytes_as_code(tree: ast.AST) -> Iterator[ast.AST]:
    """Find what turns stored or sent bytes into objects of any class, or into code."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) if _READS_CODE & {alias.name.partition(".")[0] for alias in names}:
                yield node
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in _READS_CODE:
                yield node
            case ast.Call(func=ast.Name(id=name)) if name in _RUNS_CODE:
                yield node
            case _:
                pass


def test_no_bytes_are_read_as_code() -> None:
    assert not _found(bytes_as_code)


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from marshal import loads", "import yaml as y", "eval(text)", "exec(code)", "__import__(name)"],
)
def test_planted_bytes_that_are_read_as_code_are_found(source: str) -> None:
    assert _planted(bytes_as_code, source) == 1


# --------------------------------------------------------------------------------------------- secrets


_SECRET = re.compile(r"(admin_?token|secret|password|passwd|credential|self\._token\b)", re.IGNORECASE)


def compared_secrets(tree: ast.AST) -> Iterator[ast.AST]:
    """Find comparisons that take the longer the more of a secret was guessed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            sides = [node.left, *node.comparators]
            if any(_SECRET.search(ast.unparse(side)) for side in sides if isinstance(side, ast.Name | ast.Attribute)):
                yield node


def test_no_secret_is_compared_with_an_operator() -> None:
    assert not _found(compared_secrets)


def test_what_admits_somebody_is_compared_in_constant_time() -> None:
    """The administrators' token of a replica, and the word between the demo's replicas and their supervisor."""
    comparing = [path.name for path in SOURCES if "compare_digest(" in path.read_text(encoding="utf-8")]
    assert comparing == ["token.py", "control.py"]


@pytest.mark.parametrize("source", ["sent == self._token", "if admin_token != sent: pass", "settings.secret == other"])
def test_planted_a_secret_that_is_compared_is_found(source: str) -> None:
    assert _planted(compared_secrets, source) == 1


def weak_randomness(tree: ast.AST) -> Iterator[ast.AST]:
    """Find owners and ids of the engine that are drawn from a generator which can be foretold."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if re.search(
                r"draw_owner|new_owner|nonce|token", name
            ):
                for call in ast.walk(node):
                    if isinstance(call, ast.Call) and re.match(
                        r"(random|uuid)\.|.*\.(randint|random|choice|uuid1)$", _dotted(call)
                    ):
                        yield call
            case _:
                pass


def _dotted(call: ast.Call) -> str:
    return ast.unparse(call.func)


def test_no_owner_is_drawn_from_a_generator_that_can_be_foretold() -> None:
    assert not _found(weak_randomness)
    assert _planted(weak_randomness, "def draw_owner(name):\n    return f'{name}:{random.randint(0, 9)}'") == 1


def test_an_owner_has_128_bits_of_the_kernels_randomness(monkeypatch: pytest.MonkeyPatch) -> None:
    from tenure import _acquirer

    asked: list[int] = []
    drawn = {_acquirer.draw_owner("shop-1") for _ in range(1000)}
    assert len(drawn) == 1000
    assert all(re.fullmatch(r"shop-1:[0-9a-f]{32}", owner) for owner in drawn)
    monkeypatch.setattr(os, "urandom", lambda octets: asked.append(octets) or b"\xab" * octets)
    assert _acquirer.draw_owner("shop-1") == "shop-1:" + "ab" * 16
    assert asked == [16]
