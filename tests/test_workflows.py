"""The workflows run what exists, ask for no more rights than they need, and refuse bad releases."""

import re
import shutil
import subprocess
import sys

import pytest
import yaml

WORKFLOWS = ("ci.yml", "gpu.yml", "release.yml")


def load(root, name):
    text = (root / ".github" / "workflows" / name).read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    workflow["on"] = workflow.pop(True)  # YAML 1.1 reads a bare `on` so
    return workflow


def steps_of(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def runs_of(workflow):
    return [step["run"] for step in steps_of(workflow) if "run" in step]


@pytest.fixture(scope="module")
def sessions(root):
    source = (root / "noxfile.py").read_text(encoding="utf-8")
    names = re.findall(r"^@nox\.session[^\n]*\n(?:@[^\n]*\n)*def (\w+)", source, re.MULTILINE)
    assert {"lint", "types", "imports", "tests", "e2e"} <= set(names)
    return set(names)


def test_there_are_no_other_workflows(root):
    assert sorted(p.name for p in (root / ".github/workflows").iterdir()) == sorted(WORKFLOWS)


def test_every_yaml_file_parses(root):
    files = [*(root / ".github").rglob("*.yml"), *(root / ".github").rglob("*.yaml")]
    assert len(files) >= 6
    for path in files:
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict), path


@pytest.mark.parametrize("name", WORKFLOWS)
def test_rights_are_few_and_credentials_do_not_stay(name, root):
    workflow = load(root, name)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"]
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60
    for step in steps_of(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_at_a_major_version(name, root):
    used = [step["uses"] for step in steps_of(load(root, name)) if "uses" in step]
    assert all(re.fullmatch(r"(actions|astral-sh)/[\w-]+@v\d+", action) for action in used), used


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_session_it_names_exists(name, root, sessions):
    for run in runs_of(load(root, name)):
        for match in re.finditer(r"\bnox -s (\"[^\"]*\"|[\w ]+)", run):
            named = match[1].strip('"').split("(")[0].split()
            assert set(named) <= sessions, run


def test_ci_runs_every_default_session(root):
    source = (root / "noxfile.py").read_text(encoding="utf-8")
    default = re.search(r"^nox\.options\.sessions = \[(.*)\]", source, re.MULTILINE)[1]
    runs = "\n".join(runs_of(load(root, "ci.yml")))
    for session in re.findall(r"\w+", default):
        assert re.search(rf"nox -s .*\b{session}\b", runs), session


def test_ci_tests_every_package_on_every_supported_python(root):
    job = load(root, "ci.yml")["jobs"]["tests"]
    matrix = job["strategy"]["matrix"]
    assert sorted(matrix["package"]) == sorted(p.name for p in (root / "packages").iterdir())
    classifiers = (root / "packages/astrai-kvcache/pyproject.toml").read_text(encoding="utf-8")
    assert matrix["python"] == re.findall(r"Python :: (3\.\d+)\"", classifiers)
    setup = next(s for s in job["steps"] if "setup-uv" in s.get("uses", ""))
    assert setup["with"]["python-version"] == "${{ matrix.python }}"
    assert not any("gpu" in str(job["runs-on"]) for job in load(root, "ci.yml")["jobs"].values())


def test_ci_tests_every_package_on_other_platforms_and_with_old_versions(root):
    jobs = load(root, "ci.yml")["jobs"]
    packages = jobs["tests"]["strategy"]["matrix"]["package"]
    for name, session in (("platforms", "tests"), ("versions", "lowest")):
        assert jobs[name]["strategy"]["matrix"]["package"] == packages
        run = jobs[name]["steps"][-1]["run"]
        assert run == f'uv run nox -s "{session}(${{{{ matrix.package }}}})"'
    systems = jobs["platforms"]["strategy"]["matrix"]["os"]
    assert any("arm" in system for system in systems)
    assert any("macos" in system for system in systems)


def test_one_gate_waits_for_every_job(root):
    jobs = load(root, "ci.yml")["jobs"]
    gate = jobs.pop("gate")
    assert sorted(gate["needs"]) == sorted(jobs)
    assert gate["if"] == "always()"


@pytest.mark.parametrize(
    ("results", "passes"),
    [
        ("success success", True),
        ("success failure", False),
        ("cancelled success", False),
        ("skipped success", False),
    ],
)
def test_the_gate_opens_only_when_all_succeeded(root, results, passes):
    run = load(root, "ci.yml")["jobs"]["gate"]["steps"][0]["run"]
    done = subprocess.run(
        ["bash", "-e", "-c", run], env={"RESULTS": results}, capture_output=True, check=False
    )
    assert (done.returncode == 0) is passes


def test_gpu_tests_run_nightly_by_hand_and_by_label(root):
    workflow = load(root, "gpu.yml")
    assert set(workflow["on"]) == {"schedule", "workflow_dispatch", "pull_request"}
    assert workflow["on"]["pull_request"]["types"] == ["labeled"]
    job = workflow["jobs"]["gpu"]
    assert job["runs-on"] == ["self-hosted", "linux", "gpu"]
    assert "github.event.label.name == 'run-gpu'" in job["if"]


def test_a_release_publishes_without_running_our_code(root):
    workflow = load(root, "release.yml")
    assert workflow["on"] == {"push": {"tags": ["astrai-*-v*"]}}
    jobs = workflow["jobs"]
    assert "permissions" not in jobs["build"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "release"
    assert jobs["publish"]["needs"] == "build"
    assert not any("checkout" in step.get("uses", "") for step in jobs["publish"]["steps"])
    assert not re.search(r"\bsecrets\.", (root / ".github/workflows/release.yml").read_text())


def test_a_release_page_has_what_an_installation_consists_of(root):
    jobs = load(root, "release.yml")["jobs"]
    commands = [step.get("run", "") for step in jobs["build"]["steps"]]
    made = next(at for at, command in enumerate(commands) if "nox -s sbom" in command)
    built = next(at for at, command in enumerate(commands) if command.startswith("uv build"))
    assert made < built  # the session writes to dist/ too, which is to be published as it is
    assert "rm -r dist" in commands[made]
    assert "sbom/*" in jobs["announce"]["steps"][-1]["run"]


class TestRelease:
    """The script that release.yml runs, on a small repository."""

    @pytest.fixture
    def repository(self, tmp_path, root):
        package = tmp_path / "packages" / "astrai-kvcache"
        package.mkdir(parents=True)
        (package / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
        (package / "CHANGELOG.md").write_text(
            "# Changes\n\n## 0.2.0\n\nNew pages.\n\n## 0.1.0\n\nOld.\n"
        )
        (tmp_path / "other").write_text("")
        shutil.copy(root / ".github" / "release.py", tmp_path)
        return tmp_path

    def run(self, repository, *arguments):
        return subprocess.run(
            [sys.executable, "release.py", *arguments],
            cwd=repository,
            capture_output=True,
            text=True,
            check=False,
        )

    def test_names_what_is_to_be_built(self, repository):
        done = self.run(repository, "check", "astrai-kvcache-v0.2.0")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "package=astrai-kvcache\nmodule=astrai_kvcache\n"

    @pytest.mark.parametrize(
        ("tag", "complaint"),
        [
            ("astrai-kvcache-v0.3.0", "pyproject.toml says 0.2.0"),
            ("astrai-kvcache-v0.2", "pyproject.toml says 0.2.0"),
            ("astrai-other-v0.2.0", "not in packages/"),
            ("astrai-kvcache-0.2.0", "not of the form"),
            ("v0.2.0", "not of the form"),
        ],
    )
    def test_refuses_a_tag_that_fits_nothing(self, repository, tag, complaint):
        done = self.run(repository, "check", tag)
        assert (done.returncode, done.stdout) == (1, "")
        assert complaint in done.stderr

    @pytest.mark.parametrize(
        "changelog", ["# Changes\n", "# Changes\n\n## 0.2.0\n\n## 0.1.0\n\nOld.\n"]
    )
    def test_refuses_a_version_without_a_changelog_entry(self, repository, changelog):
        (repository / "packages/astrai-kvcache/CHANGELOG.md").write_text(changelog)
        done = self.run(repository, "check", "astrai-kvcache-v0.2.0")
        assert (done.returncode, done.stdout) == (1, "")
        assert "no entry for 0.2.0" in done.stderr

    def test_every_package_could_be_released_now(self, root):
        for package in sorted((root / "packages").iterdir()):
            version = re.search(
                r'^version = "(.*)"', (package / "pyproject.toml").read_text(), re.MULTILINE
            )[1]
            command = [".github/release.py", "check", f"{package.name}-v{version}"]
            done = subprocess.run(
                [sys.executable, *command], cwd=root, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr

    def test_notes_are_the_changelog_and_the_packages_own_commits(self, repository):
        def git(*arguments):
            identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
            subprocess.run(
                ["git", *identity, *arguments], cwd=repository, check=True, capture_output=True
            )

        git("init")
        git("add", "packages")
        git("commit", "-m", "pages of old")
        git("tag", "astrai-kvcache-v0.1.0")
        git("add", "other")
        git("commit", "-m", "something else")
        (repository / "packages/astrai-kvcache/new").write_text("")
        git("add", "packages")
        git("commit", "-m", "new pages")
        git("tag", "astrai-kvcache-v0.2.0")

        done = self.run(repository, "notes", "astrai-kvcache-v0.2.0")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("New pages.\n\n### Commits\n\n- new pages (")
        assert done.stdout.count("\n- ") == 1
        assert "Old." not in done.stdout
