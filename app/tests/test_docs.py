"""The pages for people: every relative link leads somewhere, and the design's words have no synonyms."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = {"build", "dist", "node_modules"}

# A word that a page must not use, and the word of the project that says it.
SYNONYMS = {
    r"artefacts?|artifacts?": "release, or archive",
    r"audit (log|trail)s?": "operation receipt",
    r"cancell(ed|ing)": "canceled (as the state CANCELED)",
    r"data (dir|directory|folder)": "state directory",
    r"deployment (id|log|report)s?": "release id, or operation receipt",
    r"downgrad(e|es|ed|ing)": "rollback",
    r"dry[- ]runs?": "check mode, or --check",
    r"fencing tokens?": "generation, or epoch",
    r"heartbeats?": "watchdog ping",
    r"pre-flight|pre flight": "preflight",
    r"purchase orders?": "order",
    r"smoke[- ]tests?": "canary",
    r"tenants?": "instance",
    r"work ?orders?|jobs?": "work",
}
# Words that sell, or that tell a tired reader that something is easy.
EMPTY_WORDS = r"simply|easily|seamless(ly)?|effortless(ly)?|blazing(ly)?|powerful|robust|battle-tested|—"


def pages() -> list[Path]:
    """Every Markdown page of the repository, without environments and build output."""
    found = []
    for folder, folders, files in ROOT.walk():
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in NOT_OURS)
        found += [folder / name for name in sorted(files) if name.endswith(".md")]
    return found


def inline_tokens(text: str) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        yield from token.children or []


def link_targets(text: str) -> list[str]:
    """What the links and pictures of a page point at, web and mail addresses left out."""
    named = (token.attrGet("href") or token.attrGet("src") for token in inline_tokens(text))
    targets = [str(target) for target in named if target is not None]
    return [target for target in targets if not re.match(r"[a-z][a-z0-9+.-]*:", target)]


def anchors(text: str) -> set[str]:
    """The anchors that a repository viewer gives the headings of a page."""
    tokens = MarkdownIt("commonmark").parse(text)
    headings = [tokens[at + 1].content for at, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """The relative links of a page that lead to no file, or to no heading of that file."""
    broken = []
    for target in link_targets(page.read_text()):
        name, _, anchor = target.partition("#")
        file = page if not name else page.parent / name
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            broken.append(target)
    return broken


def prose(text: str) -> str:
    """The words of a page, without its code."""
    return "\n".join(token.content for token in inline_tokens(text) if token.type == "text")


def word_faults(text: str) -> list[str]:
    words = prose(text)
    faults = [
        f"{found.group(0)!r}: say {instead}"
        for synonym, instead in SYNONYMS.items()
        for found in re.finditer(rf"\b(?:{synonym})\b", words, re.IGNORECASE)
    ]
    return faults + [f"{found.group(0)!r}: leave it out" for found in re.finditer(EMPTY_WORDS, words)]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_resolves(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_uses_the_words_of_the_design(page: Path) -> None:
    assert word_faults(page.read_text()) == []


def test_a_broken_link_and_a_missing_heading_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Only heading: `one`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[here](other.md) [there](other.md#only-heading-one) [web](https://example.org/)\n\n"
        "| a |\n| --- |\n| [gone](gone.md) [no heading](other.md#two) ![picture](no.png) |\n"
    )
    assert broken_links(page) == ["gone.md", "other.md#two", "no.png"]


def test_a_synonym_is_found_in_prose_and_allowed_in_code() -> None:
    assert word_faults("Run a smoke test.\n\n```bash\nrun jobs\n```\n") == ["'smoke test': say canary"]
    assert word_faults("Use `jobs -l`. It is the canary.") == []


def test_every_direct_dependency_has_its_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    stated = [*project["project"]["dependencies"]]
    stated += [name for group in project["dependency-groups"].values() for name in group]
    stated += [
        name for extra in project["project"].get("optional-dependencies", {}).values() for name in extra
    ]
    names = {re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] for requirement in stated}
    justified = set(
        re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/dependencies.md").read_text(), re.MULTILINE)
    )
    assert names <= justified


def versions_of_the_scenarios() -> str:
    """The versions that the scenarios run on, as each runbook names them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lock = (ROOT / "requirements-dev.lock").read_text()
    core = re.search(r"^ansible-core==(\d+\.\d+)\.", lock, re.MULTILINE)
    assert core is not None
    version = project["version"]
    return f"standfast {version}, Debian 13, systemd 257, Python 3.13, ansible-core {core.group(1)}"


@pytest.mark.parametrize(
    "page",
    sorted(set(ROOT.glob("runbooks/*.md")) - {ROOT / "runbooks/README.md"}),
    ids=lambda page: page.stem,
)
def test_a_runbook_names_the_versions_that_it_is_tested_with(page: Path) -> None:
    assert f"- Tested with: {versions_of_the_scenarios()}\n" in page.read_text()
