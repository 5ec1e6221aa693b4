"""The operator's commands around a recovery, as they are typed; the questions at a real terminal."""

import json
import os
import pty
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daily import COUNTS, Day, day, sha256
from supplying import TOKEN
from support import Instance

from standfast.cli import main as cli
from standfast.cli.schemas import load
from standfast.operations.recovery import plan as plans
from standfast.operations.recovery.questions import edit, recorded_deliveries

PATIENCE = 60.0


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    """The morning restored and inspected."""
    with day(tmp_path_factory.mktemp("shop")) as made:
        made.begin().go_on()
        made.restore_here()
        made.inspect_here()
        yield made


def at_a_terminal(
    command: list[str], environment: dict[str, str], answers: list[tuple[str, str]]
) -> tuple[int, str]:
    """Run a command on a pseudo-terminal and answer each question once it has appeared."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(command[0], command, environment)
    said, until = "", time.monotonic() + PATIENCE
    left = list(answers)
    seen = 0
    while True:
        assert time.monotonic() < until, said
        if left and left[0][0] in said[seen:]:
            question, answer = left.pop(0)
            seen = said.index(question, seen) + len(question)
            os.write(terminal, answer.encode())
        if not select.select([terminal], [], [], 0.2)[0]:
            continue
        try:
            data = os.read(terminal, 4096)
        except OSError:  # Linux says so when the other end is closed
            break
        if not data:
            break
        said += data.decode()
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert not left, said
    return os.waitstatus_to_exitcode(status), said


def test_the_questions_are_asked_at_a_terminal_and_the_digest_is_printed(shop: Day) -> None:
    shop.inspect_here("asked.json")
    plan = shop.plan_file("asked.json")
    first, second = sorted([shop.vanilla, shop.strawberry])
    yes = {shop.vanilla: "y\n", shop.strawberry: "n\n"}
    assert shop.running is not None
    answers = [
        ("chocolate: how many", "9\n"),
        ("strawberry: how many", "-1\n"),
        ("a whole number from 0 to 1000000", "many\n"),
        ("strawberry: how many", "1\n"),
        ("vanilla: how many", "8\n"),
        (f"order {first}", yes[first]),
        (f"order {second}", yes[second]),
        (f"work {shop.running.work} was interrupted", "n\n"),
        ("model calls the lost state had made", "y\n"),
        ("how many model calls?", "3\n"),
        ("for how many cents?", "12\n"),
        ("how many tokens?", "4000\n"),
    ]
    before = time.time()
    command = [word for word in shop.command("recover", "edit-plan", plan) if word != "--json"]
    code, said = at_a_terminal(command, dict(shop.process_environment()), answers)
    assert code == 0, said
    found = plans.parse(plan.read_bytes())
    assert {sku: one.on_hand for sku, one in found.inventory.items()} == COUNTS
    assert {key: one.received for key, one in found.deliveries.items()} == {
        shop.vanilla: True,
        shop.strawberry: False,
    }
    assert found.interrupted == {shop.running.work: "report"}
    assert found.usage == plans.LostUsage(calls=3, cents=12, tokens=4000)
    assert before - 1 <= found.observed <= time.time()
    assert sha256(plan.read_bytes()) in said
    assert plan.stat().st_mode & 0o777 == 0o600
    assert shop.recover_here(plan, check=True).usage == found.usage


def test_an_abort_leaves_the_plan_as_it_is(shop: Day) -> None:
    plan = shop.plan_file()
    before = plan.read_bytes()
    command = shop.command("recover", "edit-plan", plan)
    code, said = at_a_terminal(
        command, dict(shop.process_environment()), [("chocolate: how many", "9\n"), ("strawberry", "\x03")]
    )
    assert code == 130, said
    assert plan.read_bytes() == before


class Scripted:
    """Answers by the beginning of the question, and keeps what was asked."""

    def __init__(self, answers: dict[str, bool]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def number(self, question: str, present: int | None, most: int) -> int:
        assert present is None
        assert most
        return COUNTS[question.partition(":")[0]]

    def yes(self, question: str, present: bool | None) -> bool:
        self.asked.append(question)
        found = [answer for begin, answer in self.answers.items() if question.startswith(begin)]
        return found[0] if found else bool(present)


@pytest.mark.parametrize("together", [True, False])
def test_a_long_history_of_deliveries_is_asked_about_at_once(tmp_path: Path, together: bool) -> None:
    with day(tmp_path) as made:
        made.begin().go_on()
        made.restore_here(made.backup())
        made.inspect_here()
        recorded = recorded_deliveries(made.layout)
        assert recorded == {made.vanilla}
        asker = Scripted({"1 deliveries are recorded": together, f"order {made.vanilla}": True})
        told = edit(made.plan_file(), asker, time.time, recorded=recorded)
        assert told.unanswered == []
        assert any(one.startswith(f"order {made.vanilla}") for one in asker.asked) is not together
        assert any(one.startswith(f"order {made.strawberry}") for one in asker.asked)
        assert made.recover_here(made.plan_file()).spent_cents == 2600


def test_without_a_terminal_nobody_is_asked(shop: Day) -> None:
    plan = shop.plan_file()
    before = plan.read_bytes()
    code, told = shop.cli("recover", "edit-plan", plan)
    assert (code, told["refused"]["code"]) == (2, "bad_input")
    code, told = shop.cli("recover", "edit-plan", plan, check=True)
    assert (code, told["check"]) == (0, True)
    assert len(told["unanswered"]) == 5
    load("recovery-plan-edited").model_validate(told)
    assert plan.read_bytes() == before


def test_recover_asks_for_all_three_options(shop: Day) -> None:
    code, told = shop.cli("recover", "--plan", shop.plan_file())
    assert (code, told["refused"]["code"]) == (2, "usage")
    assert "--digest" in told["refused"]["reason"]


def test_check_is_a_diff_for_people(
    shop: Day, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in shop.environment.items():
        monkeypatch.setenv(name, value)
    plan = shop.answered("diff.json")
    before = shop.fingerprint()
    state = ["--state", str(shop.layout.state)]
    asked = ["--plan", str(plan), "--digest", sha256(plan.read_bytes()), "--operator", "lucy"]
    assert cli.main(["--check", *state, "recover", *asked]) == 0
    said = capsys.readouterr().out
    assert f"order {shop.vanilla}: 6 of vanilla\n  - REVOKED\n  + DELIVERED, 1800 cents spent\n" in said
    assert "stock of vanilla\n  - 2\n  + 8\n" in said
    assert "nothing was changed" in said
    assert shop.fingerprint() == before


def test_inspect_tells_what_was_not_known(
    shop: Day, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in shop.environment.items():
        monkeypatch.setenv(name, value)
    state = ["--state", str(shop.layout.state)]
    out = shop.plan_file("told.json")
    assert cli.main([*state, "account", "inspect", "--operator", "lucy", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert shop.strawberry in said.out
    assert "4 of strawberry for 8.00 EUR" in said.out
    assert f"standfast recover edit-plan {out}" in said.out
    assert TOKEN not in said.out + said.err


def test_the_restore_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Day(Instance.make(tmp_path), supplier=None)  # type: ignore[arg-type]
    made.layout.receipts.mkdir(mode=0o700)
    made.begin()
    state = ["--state", str(made.layout.state)]
    assert cli.main(["--check", *state, "restore", made.morning]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert cli.main([*state, "restore", made.morning]) == 0
    said = capsys.readouterr().out
    assert "paused" in said
    assert "next: standfast account inspect" in said
    assert cli.main([*state, "restore", made.morning]) == 0
    assert "restored from this backup before" in capsys.readouterr().out
    assert cli.main([*state, "health"]) == 4
    assert f"restored from {made.morning}" in capsys.readouterr().out


@pytest.mark.parametrize("usage", [{"calls": 3, "cents": 12}, "unknown"], ids=["stated", "unknown"])
def test_the_lost_usage_counts_as_it_was_stated(tmp_path: Path, usage: Any) -> None:
    with day(tmp_path) as made:
        made.begin()
        made.restore_here()
        before = made.instance.rows("SELECT * FROM usage_losses")
        assert before, "what was lost is not zero: it is unknown"
        made.recover_here(made.answered(usage=usage))
        after = made.instance.rows("SELECT * FROM usage_losses")
        assert (after == before) == (usage == "unknown")
        [(result,)] = made.instance.rows("SELECT result FROM recoveries")
        told = json.loads(result)["usage"]
        assert told == (usage if usage == "unknown" else {**usage, "tokens": None})
