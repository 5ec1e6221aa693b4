"""The service with a live model: a real `serve` process and a real HTTP server of the protocol, on loopback.

The server is a stand-in. No hosted model was called.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from endpoint_standin import KEY, MODEL, StandIn, call, cut_off, error, replies, silent, standin, usage
from support import Instance, Process, eventually

from standfast.cli.schemas import load

LOOK = replies(None, call("list_stock"), used=usage(1000, 20, 400))
ANSWER = replies("Vanilla: 2 on hand.", used=usage(1200, 30, 900))
TABLE = """
[model]
input_cents = 250
cached_cents = 125
output_cents = 1000
daily_calls = {calls}
daily_cents = 50
"""


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    made = Instance.make(tmp_path)
    priced(made, 100)
    return made


def priced(instance: Instance, calls: int) -> None:
    """The sample with a [model] table of its own."""
    text = re.sub(r"(?ms)^\[model\].*?(?=^# What|\Z)", "", instance.layout.shop.read_text())
    instance.layout.shop.write_text(text + TABLE.format(calls=calls))


def command(instance: Instance, *arguments: str, code: int = 0, schema: str = "") -> dict[str, Any]:
    """One command as on an installed host, without the service's environment."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "standfast", "--json", "--state", str(instance.layout.state)),
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == code, done.stderr
    assert KEY not in done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    if schema:
        load(schema).model_validate(found)
    return found


def ended(instance: Instance, work: str) -> str:
    eventually(lambda: instance.status(work)[0] not in {"READY", "RUNNING"})
    return instance.status(work)[0]


def key_is_nowhere(instance: Instance, log: str) -> None:
    """Not in the journal, and in no file of the instance's root: the store, its log, reports, all of it."""
    assert KEY not in log
    for path in instance.layout.root.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


def test_work_is_done_with_a_live_model_and_every_record_says_so(instance: Instance) -> None:
    with standin(LOOK, ANSWER) as one, Process(instance, pausing=None, **one.environment).ready() as process:
        work = instance.add().work
        assert ended(instance, work) == "DONE"
        shown = command(instance, "work", "show", work, schema="work")
        account = command(instance, "usage", schema="usage")
        health = command(instance, "health", code=0, schema="health")
        assert process.terminate() == 0
        log = process.log
    assert instance.reports(work) == ["Vanilla: 2 on hand."]
    assert len(one.requests) == 2
    assert {request["authorization"] for request in one.requests} == {f"Bearer {KEY}"}
    said = [entry["message"] for entry in shown["transcript"]]
    assert {message["source"] for message in said if message["role"] == "assistant"} == {f"live:{MODEL}"}
    assert shown["sources"] == [f"live:{MODEL}"]
    assert f"live model: source=live:{MODEL}" in log
    assert f"source=live:{MODEL}" in log.partition("work ended")[2]
    # 900 fresh and 1300 cached input tokens, 50 of output: 225,000 + 162,500 + 50,000 microcents.
    figures = {
        "calls": 2,
        "unknown_calls": 0,
        "input_tokens": 2200,
        "cached_tokens": 1300,
        "output_tokens": 50,
        "lost_tokens": 0,
        "cents": 1,
    }
    assert shown["usage"] == figures
    assert account["now"]["today"]["figures"] == figures
    assert [one["work"] for one in account["work"]] == [work]
    assert instance.rows("SELECT cost_microcents FROM usage_days") == [(437_500,)]
    assert (health["usage"]["model"], health["usage"]["last_call"]) == (f"live:{MODEL}", "answered")
    key_is_nowhere(instance, log)


def test_without_a_key_the_offline_planner_answers_and_it_is_said(instance: Instance) -> None:
    with Process(instance).ready() as process:
        work = instance.add().work
        assert ended(instance, work) == "DONE"
        assert command(instance, "work", "show", work)["sources"] == ["offline"]
        assert command(instance, "health")["usage"]["model"] == "offline"
        process.terminate()
        assert "no live model: source=offline" in process.log
    assert instance.rows("SELECT count(*) FROM usage_calls") == [(0,)]


def test_a_waiting_service_has_not_loaded_the_library(instance: Instance) -> None:
    def loaded(process: Process) -> bool:
        maps = Path(f"/proc/{process.process.pid}/maps").read_text()
        return "jiter" in maps or "_ssl." in maps

    with standin(LOOK, ANSWER) as one, Process(instance, pausing=None, **one.environment).ready() as process:
        command(instance, "health")
        time.sleep(1.2)
        assert not loaded(process)
        ended(instance, instance.add().work)
        assert loaded(process), "the check can tell"


def test_a_ceiling_blocks_the_work_with_a_report_and_nothing_spins(instance: Instance) -> None:
    priced(instance, 3)
    with (
        standin(LOOK, ANSWER, LOOK) as one,
        Process(instance, pausing=None, **one.environment).ready() as process,
    ):
        assert ended(instance, instance.add().work) == "DONE"
        second, third = instance.add().work, instance.add(session="other").work
        assert ended(instance, second) == ended(instance, third) == "BLOCKED"
        time.sleep(2.5)
        assert len(one.requests) == 3
        health = command(instance, "health", code=4)
        assert process.terminate() == 0
        log = process.log
    (report,) = instance.reports(third)
    assert "the ceiling of 3 model calls for" in report
    (reason,) = instance.rows("SELECT reason FROM work WHERE id = ?", third)[0]
    assert reason.startswith("COST_LIMIT: the ceiling of 3 model calls")
    assert [told["rule"] for told in health["attention"]] == ["usage_ceiling"]
    assert "2 by daily_calls" in health["attention"][0]["observed"]
    assert log.count("work ended") == 3
    priced(instance, 10)
    with standin(ANSWER) as one, Process(instance, pausing=None, **one.environment).ready():
        assert command(instance, "health")["attention"] == [], "a raised ceiling ends it"
        assert ended(instance, instance.add().work) == "DONE"


@pytest.mark.parametrize(
    ("answers", "status", "outcomes"),
    [
        (
            [error(429, Retry_After="1"), LOOK, error(500), ANSWER],
            "DONE",
            "refused answered unclear answered",
        ),
        ([cut_off(20), LOOK, ANSWER], "DONE", "unclear answered answered"),
        ([error(401, "invalid_api_key", f"Incorrect key: {KEY}")], "BLOCKED", "refused"),
        ([replies("x", used="missing")], "BLOCKED", "unclear"),
        ([replies(None, call("list_stock", "{")), ANSWER], "DONE", "answered answered"),
    ],
)
def test_what_an_endpoint_does_wrong(
    instance: Instance, answers: list[Any], status: str, outcomes: str
) -> None:
    with standin(*answers) as one, Process(instance, pausing=None, **one.environment).ready() as process:
        work = instance.add().work
        assert ended(instance, work) == status
        process.terminate()
        log = process.log
    assert len(instance.reports(work)) == 1
    rows = instance.rows("SELECT outcome FROM usage_calls ORDER BY seq")
    assert " ".join(row[0] for row in rows) == outcomes
    key_is_nowhere(instance, log)


def test_an_endpoint_that_says_nothing(instance: Instance) -> None:
    text = instance.layout.shop.read_text()
    instance.layout.shop.write_text(text.replace("call_seconds = 45", "call_seconds = 5"))
    with standin(silent(60)) as one, Process(instance, pausing=None, **one.environment).ready():
        work = instance.add().work
        assert ended(instance, work) == "BLOCKED"
        assert "did not answer within" in instance.reports(work)[0]
    assert instance.rows("SELECT outcome FROM usage_calls") == [("unclear",)]


def test_a_stop_does_not_wait_for_an_endpoint_that_asks_to_wait(instance: Instance) -> None:
    with (
        standin(error(503, Retry_After="30")) as one,
        Process(instance, pausing=None, **one.environment).ready() as process,
    ):
        work = instance.add().work
        eventually(lambda: "trying again in 30.0 s" in process.log)
        began = time.monotonic()
        assert process.terminate() == 0
        assert time.monotonic() - began < 10
    assert instance.status(work)[0] == "RUNNING"
    assert len(one.requests) == 1


def test_a_canary_asks_the_offline_planner_and_says_so(instance: Instance) -> None:
    with standin(error(500)) as one, Process(instance, pausing=None, **one.environment).ready():
        canary = command(instance, "canary", schema="canary")
        shown = command(instance, "work", "show", canary["work"])
        assert shown["sources"] == ["offline"]
        assert one.requests == []


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"STANDFAST_MODEL_KEY": ""}, "STANDFAST_MODEL_KEY"),
        ({"STANDFAST_MODEL_URL": f"https://{KEY}@models.example"}, "STANDFAST_MODEL_URL"),
        ({"STANDFAST_MODEL": ""}, "STANDFAST_MODEL"),
    ],
)
def test_an_invalid_configuration_is_exit_78_with_the_field(
    instance: Instance, changed: dict[str, str], field: str
) -> None:
    environment = StandIn([], url="http://127.0.0.1:1/v1").environment | changed
    with Process(instance, pausing=None, **environment) as process:
        assert process.wait() == 78
        assert f"standfast: {field}: " in process.log
        assert KEY not in process.log


class TestLost:
    def end_era(self, instance: Instance) -> None:
        from standfast.authority import replace, resume  # noqa: PLC0415

        with instance.store() as store:
            now = time.time()
            replace(store, instance.layout, "test", now)
            resume(store, instance.layout.marker, "test", now)

    def test_what_an_era_s_end_lost_stops_live_calls_until_it_is_stated(self, instance: Instance) -> None:
        self.end_era(instance)
        with standin(LOOK, ANSWER) as one, Process(instance, pausing=None, **one.environment).ready():
            work = instance.add().work
            assert ended(instance, work) == "BLOCKED"
            assert one.requests == []
            assert "nobody has stated how many model calls" in instance.reports(work)[0]
            health = command(instance, "health", code=4)
            assert "`standfast usage lost`" in health["attention"][0]["remedy"]
            would = command(instance, "--check", "usage", "lost", "--calls", "0", schema="usage-loss-stated")
            assert (would["changed"], would["check"]) == (True, True)
            assert command(instance, "usage")["now"]["today"]["unstated"] == ["calls", "tokens", "cents"]
            assert command(instance, "usage", "lost", "--calls", "0")["changed"] is True
            assert command(instance, "usage", "lost", "--calls", "0")["changed"] is False
            assert command(instance, "health")["attention"] == []
            assert ended(instance, instance.add().work) == "DONE"

    @pytest.mark.parametrize("arguments", [[], ["--calls", "-1"], ["--calls", "0", "--cents", "3"]])
    def test_half_a_statement_is_refused(self, instance: Instance, arguments: list[str]) -> None:
        self.end_era(instance)
        refused = command(instance, "usage", "lost", *arguments, code=2)
        assert refused["changed"] is False


def test_the_page_for_people(instance: Instance) -> None:
    with standin(LOOK, ANSWER) as one, Process(instance, pausing=None, **one.environment).ready():
        work = instance.add().work
        ended(instance, work)
    shown = [
        subprocess.run(
            [sys.executable, "-m", "standfast", "--state", str(instance.layout.state), *words],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[1])},
        ).stdout
        for words in (["usage"], ["health"], ["work", "show", work])
    ]
    assert f"live:{MODEL}" in shown[0]
    assert "2 of 100" in shown[0]
    assert "1 of 50" in shown[0]
    assert work in shown[0]
    assert f"live:{MODEL}, 2 of 100 calls, 1 cents" in shown[1]
    assert re.search(rf"^answered by +live:{MODEL}$", shown[2], re.MULTILINE)
    assert "2 calls, 2200 input and 50 output tokens, 1 cents; 0 unknown" in shown[2]
