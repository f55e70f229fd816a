"""Changes the modules that decide who may read which page, one place at a time, and runs the tests.

``python tests/mutants.py [MODULE ...]`` lists each change that no test notices, and fails for those
that ``mutants.md`` does not explain.
"""

import ast
import copy
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path

import hypothesis
import pytest
import torch

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "astrai_kvcache"
MODULES = ("allocator", "free_runs", "prefix_cache", "shared_pages")
# The nearest tests first, as the first failure ends a run.
WIDER_TESTS = ("pool", "offload", "testing", "state_machine")
MAX_CPU_SECONDS = 40  # the unchanged code takes a third of that
MAX_BYTES = 4 * 2**30

OPPOSITES = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
REMOVABLE = (ast.Expr, ast.AugAssign, ast.Delete, ast.Return, ast.Continue, ast.Break)
Edit = Callable[[ast.AST], None]


@dataclass(frozen=True)
class Mutant:
    """A module with one change.

    Attributes:
        module: its name.
        name: where the change is and what, the same as long as that code is.
        tree: the changed module.
    """

    module: str
    name: str
    tree: ast.Module


def edits(node: ast.AST) -> Iterator[Edit]:
    """Each way to change one node in place."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield lambda n, i=i, op=op: n.ops.__setitem__(i, OPPOSITES[type(op)]())
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        yield lambda n: setattr(n, "op", OPPOSITES[type(n.op)]())
    if isinstance(node, ast.UnaryOp):
        yield lambda n: setattr(n, "operand", ast.UnaryOp(type(n.op)(), n.operand))
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield lambda n: setattr(n, "value", not n.value)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        for step in (1, -1):
            yield lambda n, step=step: setattr(n, "value", n.value + step)
    yield from removals(node)


def removals(node: ast.AST) -> Iterator[Edit]:
    """Each statement of a node that it could do without."""
    for field in ("body", "orelse"):
        statements = getattr(node, field, [])
        for i, statement in enumerate(statements if isinstance(statements, list) else []):
            if is_removable(statement):
                yield lambda n, f=field, i=i: getattr(n, f).__setitem__(i, ast.Pass())


def is_removable(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call)
    if isinstance(statement, ast.Assign):
        return not isinstance(statement.targets[0], ast.Name)
    return isinstance(statement, REMOVABLE)


def places(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.AST, ast.stmt]]:
    """Every node that may be changed, with its function and its statement."""

    def visit(node: ast.AST, function: str, statement: ast.stmt | None) -> Iterator:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        if isinstance(node, ast.stmt):
            statement = node
        # Messages and types change nothing that a test should pin; asserts are tests themselves.
        if isinstance(node, ast.Assert | ast.JoinedStr | ast.AnnAssign | ast.arg):
            return
        yield function, node, statement
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function, statement)

    return visit(tree, function, None)


def mutants_of(module: str) -> list[Mutant]:
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    found = []
    for index, (function, node, statement) in enumerate(places(tree)):
        for edit in edits(node):
            changed = copy.deepcopy(tree)
            *_, (_, target, around) = (p for i, p in enumerate(places(changed)) if i <= index)
            edit(target)
            ast.fix_missing_locations(changed)
            before, after = (
                first_change(x, y) for x, y in ((statement, around), (around, statement))
            )
            found.append(Mutant(module, f"{module}.{function}: `{before}` -> `{after}`", changed))
    return found


def first_change(one: ast.stmt, other: ast.stmt) -> str:
    """The first line in which a statement differs from another."""
    lines, others = (ast.unparse(x).splitlines() for x in (one, other))
    differing = (a for a, b in zip(lines, [*others, ""], strict=False) if a != b)
    return next(differing, lines[-1]).strip()


class MutantLoader(SourceFileLoader):
    """Loads a changed module instead of the one in the file."""

    def __init__(self, mutant: Mutant) -> None:
        path = str(PACKAGE / f"{mutant.module}.py")
        super().__init__(f"astrai_kvcache.{mutant.module}", path)
        self.code = compile(mutant.tree, path, "exec")

    def get_code(self, fullname):
        return self.code


class MutantFinder(MetaPathFinder):
    """Finds one changed module."""

    def __init__(self, mutant: Mutant) -> None:
        self.loader = MutantLoader(mutant)

    def find_spec(self, fullname, path, target=None):
        if fullname != self.loader.name:
            return None
        return spec_from_file_location(fullname, self.loader.path, loader=self.loader)


def survives(mutant: Mutant) -> bool:
    """Run the tests on a mutant in a process of its own; whether they all pass."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        sys.meta_path.insert(0, MutantFinder(mutant))
        os._exit(run_tests(mutant.module))
    return os.waitpid(child, 0)[1] == 0


def run_tests(module: str) -> int:
    """Run the module's own tests, then those of what is built on it; gives pytest's exit code."""
    own = [str(path) for path in [TESTS / f"test_{module}.py"] if path.exists()]
    wider = [str(TESTS / f"test_{name}.py") for name in WIDER_TESTS]
    for files in (own, wider) if own else (wider,):
        # pytest warns of hypothesis, which is imported once for all mutants, before it.
        code = pytest.main(["-x", "-p", "no:cacheprovider", "-W", "ignore:Module already", *files])
        if code:
            return int(code)
    return 0


def main(modules: list[str]) -> int:
    explained = re.findall(
        r"^- (\w+\.\S+: `.*` -> `.*`)$",
        (TESTS / "mutants.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    torch.set_num_threads(1)
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # the first failure will do
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, phases=phases)
    hypothesis.settings.load_profile("mutants")
    for module in modules:
        source = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")
        if not survives(Mutant(module, "nothing changed", ast.parse(source))):
            sys.stdout.write(f"The tests fail before {module} is changed; run them first.\n")
            return 1
    mutants = [mutant for module in modules for mutant in mutants_of(module)]
    started, survivors = time.monotonic(), []
    for i, mutant in enumerate(mutants):
        if survives(mutant):
            survivors.append(mutant.name)
            known = "explained" if mutant.name in explained else "NOT EXPLAINED"
            sys.stdout.write(f"{i}/{len(mutants)} survives, {known}: {mutant.name}\n")
            sys.stdout.flush()
    gone = [name for name in explained if name.split(".")[0] in modules and name not in survivors]
    sys.stdout.write(
        f"{len(mutants)} mutants, {len(survivors)} survive, {time.monotonic() - started:.0f} s\n"
        + "".join(f"explained, but does not survive: {name}\n" for name in gone)
    )
    return int(bool(gone) or not set(survivors) <= set(explained))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(MODULES)))
