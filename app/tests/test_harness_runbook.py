"""The runbook executor must be able to fail: each rule is broken once here; blocks run for real."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import kill_tree
from runbook import (
    BlockFailed,
    Executor,
    Kind,
    PageError,
    anatomy,
    executed,
    matches,
    pages,
    parse,
    unclaimed,
)
from target import wait_until

PAGE = """# Title

## When not to use this page

## Preconditions

```bash check quiet
true
```

## Diagnosis

## Rollback point

## Act

```bash act on=controller exit=3 timeout=5
echo done; exit 3
```

```text output
done
```

**Stop if** it is refused.

## Verify

```bash verify quiet
true
```

## Rollback

```bash rollback quiet
true
```

## Whom to ask
"""


class Folder:
    """Stands where the controller's folder does; the blocks are executed for real."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = dict(os.environ)


def executor(tmp_path: Path, page: str) -> Executor:
    controller: Any = Folder(tmp_path)
    made = Executor(parse("page", page), None, controller, "here")
    made.record = tmp_path / "records/here.jsonl"
    return made


def run(tmp_path: Path, page: str) -> list[str]:
    return [block.code for block in executor(tmp_path, page).run()]


def test_reads_kinds_options_and_sections() -> None:
    page = parse("page", PAGE)
    act = page.blocks[1]
    assert [block.kind for block in page.blocks] == [Kind.CHECK, Kind.ACT, Kind.VERIFY, Kind.ROLLBACK]
    assert (act.on, act.exit, act.timeout, act.output) == ("controller", 3, 5, "done")
    assert act.section == "Act"
    assert page.blocks[0].output is None


@pytest.mark.parametrize(
    ("fence", "said"),
    [
        ("```bash\ntrue\n```", "a block is"),
        ("```\ntrue\n```", "a block is"),
        ("```sh check quiet\ntrue\n```", "a block is"),
        ("```bash look quiet\ntrue\n```", "a block is"),
        ("```bash check quiet on=moon\ntrue\n```", "on=moon"),
        ("```bash check quiet exit=x\ntrue\n```", "exit=x"),
        ("```bash check quiet timeout=0\ntrue\n```", "timeout=0"),
        ("```bash check quiet retry=3\ntrue\n```", "retry=3"),
        ("```bash check quiet quiet\ntrue\n```", "repeated"),
        ("```bash check quiet\ntrue", "not closed"),
        ("```bash check quiet\n\n```", "empty"),
        ("```bash check\ntrue\n```", "say what the block prints"),
        ("```bash check\ntrue\n```\n```bash check quiet\ntrue\n```", "say what the block prints"),
        ("```text output\nx\n```", "output of no command"),
        ("~~~python\nx\n~~~", "a block is"),
    ],
)
def test_unknown_or_loose_blocks_are_errors(fence: str, said: str) -> None:
    with pytest.raises(PageError, match=said):
        parse("page", f"# T\n\n## Act\n\n{fence}\n")


@pytest.mark.parametrize(
    ("expected", "seen", "equal"),
    [
        ("a\nb", "a\nb\n", True),
        ("a", "b", False),
        ("a", "a\nb", False),
        ("...", "", True),
        ("...", "a\nb", True),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nb\nc", False),
        ("...\n... failed=0 ...\n", "x\nhost : ok=1 failed=0 skipped=0\n", True),
        ("...\n... failed=0 ...\n", "x\nhost : ok=1 failed=1 skipped=0\n", False),
        ("standfast ... (...)", "standfast 0.1.0 (source)", True),
        ("a.c", "abc", False),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_output_patterns(expected: str, seen: str, *, equal: bool) -> None:
    assert matches(expected, seen) is equal


def block(code: str, words: str = "quiet", output: str | None = None) -> str:
    shown = "" if output is None else f"```text output\n{output}\n```\n"
    return f"## Act\n\n```bash act on=controller {words}\n{code}\n```\n{shown}"


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (block("echo no", "", "yes"), "something else"),
        (block("echo no"), "quiet"),
        (block("false"), "exit 1, the page says 0"),
        (block("true", "quiet exit=3"), "exit 0, the page says 3"),
        (block("sleep 30", "quiet timeout=1"), "longer than 1 s"),
        (block("false | cat"), "exit 1"),
        (block('echo "$UNSET_NAME"'), "exit 1|exit 127"),
        (block("read -r line"), "exit 1"),
    ],
)
def test_a_block_that_differs_from_its_page_fails(tmp_path: Path, page: str, said: str) -> None:
    broken = executor(tmp_path, page)
    with pytest.raises(BlockFailed, match=said):
        broken.run()
    assert executed(tmp_path / "records") == set()


def test_stops_at_the_first_failing_block(tmp_path: Path) -> None:
    page = block("touch one") + block("false") + block("touch three")
    with pytest.raises(BlockFailed):
        run(tmp_path, page)
    assert (tmp_path / "one").exists()
    assert not (tmp_path / "three").exists()


def test_a_timeout_ends_the_whole_tree(tmp_path: Path) -> None:
    page = block("(sleep 61 & echo $! > child; wait)", "quiet timeout=1")
    with pytest.raises(BlockFailed):
        run(tmp_path, page)
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not alive(child), 5, "the child is gone")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_ending_a_process_that_is_gone_is_fine() -> None:
    kill_tree(2**22 - 1)


def test_an_edited_block_is_not_executed_any_more(tmp_path: Path) -> None:
    page = block("true") + block("exit 0")
    run(tmp_path, page)
    done = executed(tmp_path / "records")
    assert unclaimed([parse("page", page)], done) == []
    edited = parse("page", page.replace("exit 0", "exit 00"))
    assert [left.code for left in unclaimed([edited], done)] == ["exit 00"]


def test_asking_for_a_section_without_blocks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="no command block"):
        executor(tmp_path, block("true")).run("Verify")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("## When not to use this page\n", "", "When not to use"),
        ("## Preconditions", "## Before", "Preconditions"),
        ("## Diagnosis\n", "", "Diagnosis"),
        ("## Rollback point\n", "", "Rollback point"),
        ("## Whom to ask\n", "", "Whom to ask"),
        ("**Stop if** it is refused.\n", "", "no `Stop if`"),
        ("```bash check quiet", "```bash act quiet", "does not belong"),
        ("```bash verify quiet", "```bash check quiet", "nothing verifies"),
        ("## Rollback\n\n", "", "'Rollback'"),
    ],
)
def test_anatomy_names_what_lacks(old: str, new: str, said: str) -> None:
    assert anatomy(parse("page", PAGE)) == []
    broken = PAGE.replace(old, new, 1)
    assert broken != PAGE
    assert any(said in problem for problem in anatomy(parse("page", broken))), anatomy(parse("page", broken))


def test_every_runbook_has_the_anatomy() -> None:
    all_pages = pages()
    assert all_pages
    assert [problem for page in all_pages for problem in anatomy(page)] == []


def test_of_a_controller_that_dies_what_runs_on_the_host_goes_on() -> None:
    """A namespace of processes stands for the host: what is in it is no worker of the controller's."""
    entered = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "sh",
        "-c",
        "echo on; exec sleep 60",
    ]
    controller = subprocess.Popen(
        ["sh", "-c", '"$@" & wait', "sh", *entered], stdout=subprocess.PIPE, text=True
    )
    assert controller.stdout is not None
    if controller.stdout.readline() != "on\n":
        pytest.skip("nobody may make a namespace of processes here")
    [worker] = _children(controller.pid)
    [on_host] = _children(worker)
    kill_tree(controller.pid)
    controller.wait()
    try:
        wait_until(lambda: not _lives(worker), 20, "the worker is gone")
        assert _lives(on_host)
    finally:
        os.kill(on_host, signal.SIGKILL)
        controller.stdout.close()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _lives(pid: int) -> bool:
    """Whether it is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
