"""The commands over stock, work, schedules, reports, skill and init: JSON, --check, repetition, refusals."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Instance

from standfast.cli.main import main
from standfast.cli.schemas import load

type Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.make(tmp_path, low=True)


@pytest.fixture
def run(instance: Instance, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command with --json; its exit code and its one object."""

    def run(*arguments: str, check: bool = False) -> tuple[int, dict[str, Any]]:
        options = ["--state", str(instance.layout.state), "--json", *(["--check"] if check else [])]
        code = main([*options, *arguments])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def told(instance: Instance, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run one command as a person does; what it printed."""

    def told(*arguments: str) -> str:
        main(["--state", str(instance.layout.state), *arguments])
        return capsys.readouterr().out

    return told


def valid(name: str, value: dict[str, Any]) -> dict[str, Any]:
    """The object, once its published model accepts it."""
    model = load(name)
    assert set(value) == set(model.model_fields)
    model.model_validate(value)
    return value


def everything(instance: Instance) -> list[Any]:
    tables = [
        row[0] for row in instance.rows("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    ]
    return [(table, instance.rows(f"SELECT * FROM {table}")) for table in tables]


def test_stock_is_listed_and_adjusted(run: Run, instance: Instance) -> None:
    code, found = run("stock")
    assert code == 0
    assert run("stock", "list") == (0, found)
    products = {p["sku"]: p for p in valid("stock-list", found)["products"]}
    assert (products["vanilla"]["on_hand"], products["vanilla"]["needed"]) == (2, 6)
    arguments = ("stock", "adjust", "vanilla", "-1", "--reason", "dropped", "--event-id", "e1")
    before = everything(instance)
    assert run(*arguments, check=True)[1]["changed"] is True
    assert everything(instance) == before
    code, adjusted = run(*arguments)
    assert (code, valid("stock-adjusted", adjusted)["changed"]) == (0, True)
    assert run(*arguments)[1]["changed"] is False
    assert run(*arguments, check=True)[1]["changed"] is False
    assert run("stock")[1]["products"][0]["on_hand"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "refused"),
    [
        (("stock", "adjust", "mint", "1", "--reason", "x"), 3, "sku_unknown"),
        (("stock", "adjust", "vanilla", "-3", "--reason", "x"), 3, "stock_out_of_range"),
        (("stock", "adjust", "vanilla", "0", "--reason", "x"), 2, "bad_input"),
        (("stock", "adjust", "vanilla", "1.5", "--reason", "x"), 2, "usage"),
        (("stock", "adjust", "vanilla", "1"), 2, "usage"),
        (("work", "add", ""), 2, "bad_input"),
        (("work", "add", "x" * 20_000), 2, "bad_input"),
        (("work", "show", "nothing"), 3, "work_unknown"),
        (("work", "cancel", "nothing"), 3, "work_unknown"),
        (("work", "list", "--status", "OPEN"), 2, "bad_input"),
        (("report", "show", "nothing"), 3, "report_unknown"),
        (("schedule", "add", "x", "--prompt", "p"), 2, "bad_input"),
        (("schedule", "add", "x", "--prompt", "p", "--every", "5", "--cron", "* * * * *"), 2, "bad_input"),
        (("schedule", "add", "x", "--prompt", "p", "--cron", "* * * * *", "--zone", "Mars"), 2, "bad_input"),
        (("schedule", "add", "morning-brief", "--prompt", "p", "--every", "5"), 3, "schedule_exists"),
        (("skill", "set", "/nonexistent/file"), 2, "bad_input"),
    ],
)
def test_a_refusal_changes_nothing_and_has_its_code(
    run: Run, instance: Instance, arguments: tuple[str, ...], code: int, refused: str
) -> None:
    before = everything(instance)
    for check in (True, False):
        got, told = run(*arguments, check=check)
        assert (got, told["refused"]["code"]) == (code, refused)
        assert told["changed"] is False
        assert everything(instance) == before


def test_work_is_added_once_for_each_origin_and_shown_with_its_record(run: Run, instance: Instance) -> None:
    arguments = ("work", "add", "How is vanilla?", "--subject", "vanilla", "--origin", "phone-1")
    before = everything(instance)
    code, foreseen = run(*arguments, check=True)
    assert (code, foreseen["changed"], foreseen["work"]) == (0, True, None)
    assert everything(instance) == before
    code, added = run(*arguments)
    assert (code, valid("work-added", added)["status"]) == (0, "READY")
    code, again = run(*arguments)
    assert (code, again["changed"], again["work"]) == (0, False, added["work"])
    assert run(*arguments, check=True)[1]["changed"] is False
    code, conflict = run("work", "add", "Another question", "--origin", "phone-1")
    assert (code, conflict["refused"]["code"]) == (3, "origin_conflict")
    instance.settle()
    shown = valid("work", run("work", "show", added["work"])[1])
    assert shown["work"]["status"] == "DONE"
    assert [row["message"]["role"] for row in shown["transcript"]][:3] == ["system", "user", "assistant"]
    report = valid("report", run("report", "show", shown["reports"][0])[1])
    assert report["work"] == added["work"]
    assert report["body"].startswith("Low stock: vanilla.")
    assert valid("report-list", run("report", "list", "--work", added["work"])[1])["reports"] == [report]
    listed = valid("work-list", run("work", "list", "--status", "DONE")[1])["work"]
    assert added["work"] in [one["id"] for one in listed]


def test_past_a_limit_work_is_recorded_as_rejected_with_exit_3(run: Run, instance: Instance) -> None:
    text = instance.layout.shop.read_text().replace("pending = 20", "pending = 1")
    instance.layout.shop.write_text(text)
    assert run("work", "add", "One")[0] == 0
    assert run("work", "add", "Two", check=True)[0] == 3
    code, rejected = run("work", "add", "Two")
    assert (code, rejected["changed"], rejected["refused"]["code"]) == (3, False, "intake_limit")
    assert "pending limit" in rejected["refused"]["reason"]
    [recorded] = run("work", "list", "--status", "REJECTED")[1]["work"]
    assert (recorded["prompt"], recorded["reason"]) == ("Two", rejected["refused"]["reason"])
    assert recorded["id"] in rejected["refused"]["observed"]


def test_the_service_s_own_origins_are_reserved(run: Run, instance: Instance) -> None:
    before = everything(instance)
    for origin in ("schedule:morning-brief:1790000000", "low-stock:vanilla:1", "delegation:x", "canary:1"):
        code, refused = run("work", "add", "One", "--origin", origin)
        assert (code, refused["refused"]["code"]) == (2, "bad_input")
    assert everything(instance) == before


def test_a_check_waits_for_no_lock(run: Run, instance: Instance) -> None:
    work = run("work", "add", "Question")[1]["work"]
    with instance.store() as store:
        store.execute("BEGIN IMMEDIATE")
        for command in (
            ["work", "cancel", work],
            ["work", "add", "Another"],
            ["schedule", "add", "noon", "--prompt", "look", "--every", "60"],
            ["schedule", "remove", "morning-brief"],
            ["stock", "adjust", "vanilla", "1", "--event-id", "e1", "--reason", "found"],
        ):
            assert run(*command, check=True)[1]["changed"] is True, command
        store.execute("ROLLBACK")


def test_work_is_canceled_once(run: Run, instance: Instance) -> None:
    work = run("work", "add", "Question")[1]["work"]
    before = everything(instance)
    assert run("work", "cancel", work, check=True)[1]["changed"] is True
    assert everything(instance) == before
    code, canceled = run("work", "cancel", work, "--reason", "asked twice")
    assert (code, valid("work-canceled", canceled)["status_before"]) == (0, "READY")
    assert run("work", "cancel", work)[1]["changed"] is False
    done = run("work", "add", "Question two")[1]["work"]
    instance.settle()
    code, refused = run("work", "cancel", done, check=True)
    assert (code, refused["refused"]["code"]) == (3, "work_finished")


def test_schedules_come_and_go(run: Run, instance: Instance) -> None:
    arguments = ("schedule", "add", "noon", "--cron", "0 12 * * *", "--zone", "Europe/Paris", "--prompt", "p")
    before = everything(instance)
    assert run(*arguments, check=True)[1]["changed"] is True
    assert everything(instance) == before
    code, added = run(*arguments)
    assert (code, valid("schedule-added", added)["schedule"]["zone"]) == (0, "Europe/Paris")
    assert run(*arguments)[1]["changed"] is False
    names = [one["name"] for one in valid("schedule-list", run("schedule", "list")[1])["schedules"]]
    assert names == ["morning-brief", "noon"]
    assert run("schedule", "remove", "noon", check=True)[1]["changed"] is True
    assert valid("schedule-removed", run("schedule", "remove", "noon")[1])["changed"] is True
    assert run("schedule", "remove", "noon")[1]["changed"] is False


def test_the_skill_is_replaced_and_shapes_the_next_answer(
    run: Run, instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert valid("skill", run("skill", "show")[1])["version"] == 1
    file = tmp_path / "skill.txt"
    file.write_text("Opening: Bonjour, Lucy.\n")
    before = everything(instance)
    assert run("skill", "set", str(file), check=True)[1]["version"] == 2
    assert everything(instance) == before
    code, changed = run("skill", "set", str(file))
    assert (code, valid("skill-set", changed)["changed"], changed["version"]) == (0, True, 2)
    assert run("skill", "set", str(file))[1] == {**changed, "changed": False}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert run("skill", "set", "-")[1]["refused"]["code"] == "bad_input"
    versions = valid("skill-history", run("skill", "history")[1])["versions"]
    assert [one["version"] for one in versions] == [2, 1]
    work = run("work", "add", "Brief")[1]["work"]
    instance.settle()
    assert instance.reports(work)[0].startswith("Bonjour, Lucy.")


def test_init_again_changes_nothing(run: Run) -> None:
    assert valid("init", run("init")[1])["changed"] is False
    assert run("init", check=True)[1]["changed"] is False


def test_an_invalid_shop_toml_is_bad_input_for_commands(run: Run, instance: Instance) -> None:
    instance.layout.shop.write_text("[shop]\n")
    for command in (["init"], ["stock"], ["work", "add", "x"]):
        code, told = run(*command)
        assert (code, told["refused"]["code"]) == (2, "bad_input")
        assert "shop.toml" in told["refused"]["reason"]


def test_an_older_store_is_left_to_init(run: Run, instance: Instance) -> None:
    with instance.store() as store:
        store.execute("DELETE FROM meta WHERE component = 'shop'")
        for table in ("episodes", "stock_events", "skills"):
            store.execute(f"DROP TABLE {table}")
    for command in (["stock"], ["work", "add", "x"], ["skill", "show"]):
        code, told = run(*command)
        assert (code, told["refused"]["code"]) == (3, "store_older")
    assert "schema shop: raised from 0 to 1" in run("init", check=True)[1]["done"]
    assert run("init")[0] == 0
    assert run("stock")[0] == 0


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["stock"], "vanilla     2        0         8              6"),
        (["work", "list"], "WORK"),
        (["report", "list"], "REPORT"),
        (["schedule", "list"], "0 0 29 2 * (UTC)"),
        (["skill", "show"], "Opening: Good morning, Lucy."),
        (["skill", "history"], "VERSION"),
        (["init"], "already so"),
        (["work", "add", "x"], "READY"),
        (["stock", "adjust", "vanilla", "1", "--reason", "x"], "recorded"),
    ],
)
def test_a_person_reads_plain_text(told: Callable[..., str], command: list[str], shown: str) -> None:
    assert shown in told(*command)


def test_a_terminal_is_never_steered_by_what_somebody_wrote(
    told: Callable[..., str], instance: Instance
) -> None:
    work = instance.add("\x1b[2J\nquestion").work
    instance.settle()
    assert "\x1b" not in told("work", "list")
    assert "\x1b" not in told("work", "show", work)


@pytest.mark.parametrize(
    "command", ["init", "serve", "stock", "work add", "schedule add", "report show", "skill set"]
)
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert "Examples:\n    standfast " in capsys.readouterr().out
