"""Read the runbooks' command blocks, and run them as they are printed.

Every fenced block of a page is claimed; one that this module does not know is an error:

    ```bash check|act|verify|rollback [on=host|controller] [exit=N] [timeout=N] [quiet]
    ```text output          the output of the block above: `...` alone on a line stands for any lines,
                            within a line for any text

A bash block is followed by its output or says `quiet` (prints nothing). It runs under `bash -euo pipefail`
with standard input closed: on the host as root with an environment of PATH and HOME only, or on the
controller in its folder. Nothing in a block is substituted.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from processes import kill_tree
from target import CHECKOUT, HOST_PATH, Controller, Host

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

RUNBOOKS = CHECKOUT / "runbooks"
RECORDS = CHECKOUT / "build/runbooks"
DEFAULT_TIMEOUT = 60
TIMED_OUT = 124
FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*(.*?)\s*$")
HEADING = re.compile(r"^## +(.*?)\s*$")
ANY_LINES = "..."
SECTIONS = (
    "When not to use",
    "Preconditions",
    "Diagnosis",
    "Rollback point",
    "Act",
    "Verify",
    "Rollback",
    "Whom to ask",
)
READ_ONLY_SECTIONS = ("When not to use", "Preconditions", "Diagnosis", "Whom to ask")


class Kind(StrEnum):
    CHECK = "check"
    ACT = "act"
    VERIFY = "verify"
    ROLLBACK = "rollback"


class PageError(Exception):
    """A page is not written as this module requires; the message names page, line and rule."""


class BlockFailed(AssertionError):
    """A block did something else than its page says."""


@dataclass(frozen=True)
class Block:
    """One command block. `output` is None when the block must print nothing."""

    page: str
    number: int
    line: int
    section: str
    kind: Kind
    code: str
    on: str = "host"
    exit: int = 0
    timeout: int = DEFAULT_TIMEOUT
    output: str | None = None

    @property
    def id(self) -> str:
        """Page, ordinal and digest of everything the block says: an edited block is another block."""
        said = "\0".join(
            (self.kind, self.on, str(self.exit), str(self.timeout), self.code, self.output or "")
        )
        return f"{self.page}#{self.number}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"

    def __str__(self) -> str:
        return f"{self.page}.md line {self.line} ({self.kind} in {self.section!r})"


@dataclass(frozen=True)
class Page:
    """A runbook: its sections in order, its blocks, and its text by section."""

    name: str
    sections: tuple[str, ...]
    blocks: tuple[Block, ...]
    text: str


@dataclass(frozen=True)
class _Fence:
    line: int
    info: str
    content: str
    section: str


def _fences(name: str, text: str) -> tuple[list[_Fence], list[str]]:
    fences: list[_Fence] = []
    sections: list[str] = []
    opened: tuple[int, str, str, str] | None = None
    body: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None:
            heading = HEADING.match(line)
            if heading:
                sections.append(heading.group(1))
            elif fence:
                opened = (number, fence.group(1), fence.group(2), fence.group(3))
                body = []
            continue
        start, indent, mark, info = opened
        if fence and not fence.group(3) and fence.group(2)[0] == mark[0] and len(fence.group(2)) >= len(mark):
            fences.append(_Fence(start, info, "\n".join(body), sections[-1] if sections else ""))
            opened = None
        else:
            body.append(line.removeprefix(indent))
    if opened is not None:
        raise PageError(f"{name}.md line {opened[0]}: the block is not closed")
    return fences, sections


def _options(name: str, fence: _Fence) -> tuple[Kind, dict[str, str], bool]:
    words = fence.info.split()
    where = f"{name}.md line {fence.line}"
    if len(words) < 2 or words[0] != "bash" or words[1] not in set(Kind):
        raise PageError(
            f"{where}: a block is `bash check|act|verify|rollback ...` or `text output`, not {fence.info!r}"
        )
    options: dict[str, str] = {}
    for word in words[2:]:
        key, _, value = word.partition("=")
        good = {"on": r"host|controller", "exit": r"\d{1,3}", "timeout": r"[1-9]\d{0,3}", "quiet": r""}.get(
            key
        )
        if good is None or not re.fullmatch(good, value) or key in options:
            raise PageError(f"{where}: unknown, repeated or malformed word {word!r}")
        options[key] = value
    return Kind(words[1]), options, "quiet" in options


def parse(name: str, text: str) -> Page:
    """Read a page; PageError for anything that is not exactly one of the known forms."""
    fences, sections = _fences(name, text)
    blocks: list[Block] = []
    waiting: _Fence | None = None  # a bash block whose output has not come yet
    for fence in fences:
        if fence.info == "text output":
            if waiting is None:
                raise PageError(f"{name}.md line {fence.line}: output of no command block")
            blocks.append(_block(name, waiting, len(blocks) + 1, fence.content))
            waiting = None
            continue
        if waiting is not None:
            raise PageError(f"{name}.md line {waiting.line}: say what the block prints, or `quiet`")
        if not fence.content.strip():
            raise PageError(f"{name}.md line {fence.line}: the block is empty")
        if _options(name, fence)[2]:
            blocks.append(_block(name, fence, len(blocks) + 1, None))
        else:
            waiting = fence
    if waiting is not None:
        raise PageError(f"{name}.md line {waiting.line}: say what the block prints, or `quiet`")
    return Page(name, tuple(sections), tuple(blocks), text)


def _block(name: str, fence: _Fence, number: int, output: str | None) -> Block:
    kind, options, _ = _options(name, fence)
    return Block(
        name,
        number,
        fence.line,
        fence.section,
        kind,
        fence.content,
        options.get("on", "host"),
        int(options.get("exit", 0)),
        int(options.get("timeout", DEFAULT_TIMEOUT)),
        output,
    )


def load(name: str) -> Page:
    return parse(name, (RUNBOOKS / f"{name}.md").read_text())


def pages() -> list[Page]:
    """Every page but the index."""
    return [load(path.stem) for path in sorted(RUNBOOKS.glob("*.md")) if path.stem != "README"]


def anatomy(page: Page) -> list[str]:
    """What a page lacks: each section in its order, `Stop if` after each act, reading only before the act."""
    problems = []
    acts = any(block.kind is Kind.ACT for block in page.blocks)
    required = SECTIONS if acts else READ_ONLY_SECTIONS
    position = -1
    for wanted in required:
        found = [i for i, title in enumerate(page.sections) if i > position and _titled(title, wanted)]
        if not found:
            problems.append(f"{page.name}: no section {wanted!r} after {page.sections[: position + 1]}")
        else:
            position = found[0]
    allowed = {
        "Preconditions": {Kind.CHECK},
        "Diagnosis": {Kind.CHECK},
        "Rollback point": {Kind.CHECK},
        "Act": {Kind.CHECK, Kind.ACT},
        "Verify": {Kind.VERIFY},
        "Rollback": {Kind.ROLLBACK, Kind.VERIFY},
    }
    for block in page.blocks:
        name = next((wanted for wanted in allowed if _titled(block.section, wanted)), None)
        if name is None or block.kind not in allowed[name]:
            problems.append(f"{block}: a {block.kind} block does not belong there")
    problems += [
        f"{block}: no `Stop if` after it"
        for block in page.blocks
        if block.kind is Kind.ACT and not _stop_follows(page, block)
    ]
    if acts and not any(
        block.kind is Kind.VERIFY and _titled(block.section, "Verify") for block in page.blocks
    ):
        problems.append(f"{page.name}: nothing verifies the act")
    return problems


def _titled(title: str, wanted: str) -> bool:
    if wanted == "Rollback":
        return title.startswith("Rollback") and not title.startswith("Rollback point")
    return title.startswith(wanted)


def _stop_follows(page: Page, block: Block) -> bool:
    later = page.text.splitlines()[block.line :]
    until = next((other.line for other in page.blocks if other.line > block.line), None)
    return any("Stop if" in line for line in later[: until - block.line if until else None])


def matches(expected: str, seen: str) -> bool:
    """Whether an output is what a page shows; trailing spaces and blank lines at both ends do not count."""
    parts = []
    for line in expected.strip("\n").splitlines():
        text = line.rstrip()
        if text == ANY_LINES:
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*".join(re.escape(piece) for piece in text.split(ANY_LINES)) + r"\n")
    lines = [line.rstrip() for line in seen.strip().splitlines()]
    return re.fullmatch("".join(parts), "".join(line + "\n" for line in lines)) is not None


class Executor:
    """Runs the blocks of one page for one scenario and records which were executed."""

    def __init__(self, page: Page, host: Host | None, controller: Controller, scenario: str) -> None:
        self.page = page
        self.host = host
        self.controller = controller
        self.record = RECORDS / f"{scenario}.jsonl"

    def run(self, *sections: str) -> list[Block]:
        """Run the blocks of the sections in the page's order (all of them without names); returns what ran.

        Stops at the first block that does not do what the page says (BlockFailed), as an operator would.
        """
        for section in sections:
            if not any(_titled(block.section, section) for block in self.page.blocks):
                raise PageError(f"{self.page.name}.md has no command block in a section {section!r}")
        chosen = [
            block
            for block in self.page.blocks
            if not sections or any(_titled(block.section, section) for section in sections)
        ]
        for block in chosen:
            self.execute(block)
        return chosen

    def execute(self, block: Block) -> None:
        """Run one block; BlockFailed says where it differs from its page."""
        rc, stdout, stderr = self._on_host(block) if block.on == "host" else self._on_controller(block)
        said = f"{block}\n{block.code}\n--- exit {rc}, stdout:\n{stdout}\n--- stderr:\n{stderr[-4000:]}"
        if rc == TIMED_OUT and block.exit != TIMED_OUT:
            raise BlockFailed(f"ran longer than {block.timeout} s: {said}")
        if rc != block.exit:
            raise BlockFailed(f"exit {rc}, the page says {block.exit}: {said}")
        if block.output is None and stdout.strip():
            raise BlockFailed(f"printed something, the page says `quiet`: {said}")
        if block.output is not None and not matches(block.output, stdout):
            raise BlockFailed(f"printed something else than\n{block.output}\n--- in {said}")
        self._remember(block)

    def _remember(self, block: Block) -> None:
        self.record.parent.mkdir(parents=True, exist_ok=True)
        with self.record.open("a") as record:
            record.write(json.dumps({"block": block.id}) + "\n")

    def _on_host(self, block: Block) -> tuple[int, str, str]:
        if self.host is None:
            raise PageError(f"{block} runs on a host, and the scenario gave none")
        done = self.host.run(
            ["env", "-i", f"PATH={HOST_PATH}", "HOME=/root", "bash", "-euo", "pipefail", "-c", block.code],
            check=False,
            timeout=block.timeout,
        )
        return done.rc, done.stdout, done.stderr

    def _on_controller(self, block: Block) -> tuple[int, str, str]:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", block.code],
            cwd=self.controller.folder,
            start_new_session=True,
            env=self.controller.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=block.timeout)
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            stdout, stderr = process.communicate()
            return TIMED_OUT, stdout, stderr
        return process.returncode, stdout, stderr


def executed(records: Path = RECORDS) -> set[str]:
    return {
        json.loads(line)["block"]
        for record in records.glob("*.jsonl")
        for line in record.read_text().splitlines()
    }


def unclaimed(all_pages: Iterable[Page], done: set[str]) -> list[Block]:
    """Blocks that no scenario executed."""
    return [block for page in all_pages for block in page.blocks if block.id not in done]


def main() -> int:
    """Fail when a block of any page was executed by no scenario."""
    all_pages = pages()
    missing = unclaimed(all_pages, executed())
    for block in missing:
        print(f"executed by no scenario: {block}")
    good = sum(len(page.blocks) for page in all_pages) - len(missing)
    failed = f"{len(missing)} failed, " if missing else ""
    print(f"==================== {failed}{good} passed in 0.00s ====================")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
