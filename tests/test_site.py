"""The documentation site: its navigation, and the check that it loads nothing from elsewhere."""

import pytest
import yaml


@pytest.fixture(scope="module")
def self_contained(site_module):
    return site_module("self_contained")


def entries(nav):
    for entry in nav:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from entries(value) if isinstance(value, list) else [value]


def test_navigation_leads_to_pages(root):
    config = yaml.safe_load((root / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = list(entries(config["nav"]))
    assert len(set(pages)) == len(pages)
    made = ("packages/", "changelogs/", "reference/python/", "reference/http-fields.md")
    made += ("contributing.md", "security.md")
    written = [page for page in pages if not page.startswith(made)]
    assert [page for page in written if not (root / "docs" / page).is_file()] == []
    assert config["theme"]["font"] is False
    assert config["strict"] is True


@pytest.mark.parametrize(
    ("name", "text", "is_found"),
    [
        ("a.html", '<script src="https://cdn.example/x.js"></script>', True),
        ("a.html", '<link rel="stylesheet" href="//fonts.example/css">', True),
        ("a.html", '<img alt="" src=http://a.example/b.png>', True),
        ("a.css", "a{background:url(https://a.example/b.png)}", True),
        ("a.html", '<a href="https://a.example/">a link</a>', False),
        ("a.html", '<link rel="canonical" href="https://a.example/">', False),
        ("a.html", '<script src="../x.js"></script>', False),
    ],
)
def test_what_is_loaded_from_elsewhere(self_contained, tmp_path, name, text, is_found):
    (tmp_path / name).write_text(text)
    assert bool(self_contained.foreign_assets(tmp_path)) is is_found
