"""What every package has, and what no file of the repository holds."""

import ast
import re
import tomllib

import pytest

MAX_LINES = 400
MIN_TEST_LINES_PER_SOURCE_LINE = 0.5
UNTELLING = re.compile(r"(^|_)(utils?|helpers?|common|misc)(_|$)")
UNTELLING_CLASS = re.compile(r"(Manager|Mixin|Helper|Utils?)$|^Base(?!SamplingStrategy$)")


def project_of(package):
    return tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def module_of(package):
    return package / "src" / package.name.replace("-", "_")


def num_lines(paths):
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def test_it_has_what_a_package_needs(package):
    for name in ("README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "tests"):
        assert (package / name).exists(), name
    assert (module_of(package) / "py.typed").read_bytes() == b""


def test_its_readme_says_what_it_is_and_shows_it(package, code_blocks):
    name = f"packages/{package.name}/README.md"
    text = (package / "README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {package.name}\n\n")
    assert code_blocks(name, "python"), "no Python snippet"


def test_its_metadata(package):
    project = project_of(package)
    assert project["name"] == package.name
    assert re.fullmatch(r"\d+\.\d+\.\d+", project["version"])
    assert project["license"] == "Apache-2.0"
    assert project["requires-python"] == ">=3.11"
    assert "Typing :: Typed" in project["classifiers"]


def test_its_license_is_the_repositorys(package, root):
    assert (package / "LICENSE").read_bytes() == (root / "LICENSE").read_bytes()


def test_its_changelog_has_an_entry_for_its_version(package):
    text = (package / "CHANGELOG.md").read_text(encoding="utf-8")
    version = re.escape(project_of(package)["version"])
    assert re.search(rf"^## {version}$\n+\S", text, re.MULTILINE)


def test_it_requires_siblings_by_a_range_that_holds_them(package, root):
    for requirement in project_of(package)["dependencies"]:
        match = re.fullmatch(r"(astrai-\w+)>=(\d+)\.(\d+),<(\d+)\.(\d+)", requirement)
        if not requirement.startswith("astrai-"):
            assert re.match(r"[\w-]+(\[\w+\])?>=", requirement), requirement
            continue
        assert match, f"{requirement} is no compatible range"
        sibling = project_of(root / "packages" / match[1])["version"].split(".")
        low, high = (match[2], match[3]), (match[4], match[5])
        assert tuple(map(int, low)) <= tuple(map(int, sibling[:2])) < tuple(map(int, high))


def test_the_lower_packages_require_nothing_but_torch(root):
    for name in ("astrai-kvcache", "astrai-kernels"):
        dependencies = project_of(root / "packages" / name)["dependencies"]
        assert [re.match(r"[\w-]+", d)[0] for d in dependencies] == ["torch"]


def test_its_public_names_are_listed_in_order(package):
    """``__all__`` is sorted as ruff sorts it: constants, classes, the rest."""
    for path in sorted(module_of(package).rglob("__init__.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
                if isinstance(node.value, ast.Call):
                    assert node.value.func.id == "sorted"
                    continue
                names = ast.literal_eval(node.value)
                assert len(set(names)) == len(names)
                assert sorted(names, key=isort_order) == names, path


def isort_order(name):
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name


def test_its_modules_are_short_and_named_for_what_they_hold(package):
    for path in sorted(package.rglob("*.py")):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        is_test = "tests" in path.relative_to(package).parts
        assert is_test or lines <= MAX_LINES, f"{path} has {lines} lines"
        assert not UNTELLING.search(path.stem), path


def test_its_classes_are_named_for_what_they_are(package):
    for path in sorted(module_of(package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                assert not UNTELLING_CLASS.search(node.name), f"{path}: {node.name}"


def test_it_has_tests_in_proportion(package):
    sources = set(module_of(package).rglob("*.py"))
    contracts = {path for path in sources if "testing" in path.relative_to(package).as_posix()}
    tests = num_lines(contracts | set((package / "tests").rglob("*.py")))
    source = num_lines(sources - contracts)
    assert tests >= MIN_TEST_LINES_PER_SOURCE_LINE * source, f"{tests} lines test {source}"


def test_its_tests_mirror_modules(package):
    """A test file is named for a module or a folder, or says in its first line what it is about."""
    modules = {path.stem.strip("_") for path in module_of(package).rglob("*")} | {
        "package",
        "readme",
    }
    for path in sorted((package / "tests").rglob("test_*.py")):
        subject = path.stem.removeprefix("test_")
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert subject in modules or docstring, path


def test_only_one_module_reads_the_environment(package):
    readers = {
        path.name
        for path in module_of(package).rglob("*.py")
        if re.search(r"os\.environ(?!\.setdefault)|os\.getenv", path.read_text(encoding="utf-8"))
    }
    assert readers <= {"_env.py", "settings.py"}


FORBIDDEN = {
    "a package registry's address": r"\b(?:py"
    + r"pi|python"
    + r"hosted|npm"
    + r"js)\.(?:org|com)\b",
    "an index setting": r"(?:index|extra-index)-" + r"url|UV_" + r"INDEX",
    "a path of somebody's machine": r"(?<![\w.:/])/(?:root|work|Users)" + r"/[\w.]",
    "unfinished work": r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what, tracked_files, root):
    pattern = re.compile(FORBIDDEN[what])
    found = []
    for path in tracked_files:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(root)}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []


def test_generated_files_are_not_tracked(tracked_files, root):
    names = {str(path.relative_to(root)) for path in tracked_files}
    assert "uv.lock" not in names
    assert not [name for name in names if re.search(r"\.(pyc|so|o|gguf|safetensors)$", name)]


def test_the_top_level_stays_as_designed(tracked_files, root):
    top = {path.relative_to(root).parts[0] for path in tracked_files}
    folders = {".ci", ".github", "docs", "packages", "tests"}
    files = {
        ".gitignore", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", "mkdocs.yml",
        "noxfile.py", "pyproject.toml",
    }  # fmt: skip
    assert top == folders | files


def test_all_versions_are_pinned_in_one_place(root):
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["uv"]
    pins = settings["constraint-dependencies"]
    assert len(pins) > 50
    assert all(re.match(r"[\w.-]+==[\w.+!]+( ;.*)?$", pin) for pin in pins), pins
    assert settings["workspace"]["members"] == ["packages/*"]
