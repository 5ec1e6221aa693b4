"""SIGKILL at every boundary of a channel: one effect for each update, nothing is said twice unasked."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from bot_api import SECRET, BotApiServer, bot_api
from channeling import desk_of, with_channel
from support import Instance, Process, eventually

from standfast import work
from standfast.serve.channel import POLL_SECONDS, STOP_SECONDS

CHILD = Path(__file__).with_name("channel_child.py")
HEARING = [
    "channel.updates_taken",
    "channel_update.before_commit",
    "channel_update.committed",
    "channel.updates_heard",
]
REPLYING = {
    "channel_reply.before_commit": "sent",
    "channel_reply.committed": "unknown",
    "channel.reply_leaves": "unknown",
    "channel.reply_left": "unknown",
    "channel_replied.before_commit": "unknown",
    "channel_replied.committed": "sent",
}
DELIVERING = {
    "deliver.before_commit": "sent",
    "deliver.committed": "unknown",
    "deliver.left": "unknown",
    "delivered.before_commit": "unknown",
    "delivered.committed": "sent",
}


@pytest.fixture
def api() -> Iterator[BotApiServer]:
    with bot_api() as made:
        yield made


@dataclass
class Forker:
    """A process that forks one for each run of rounds."""

    process: "subprocess.Popen[str]"

    def rounds(self, instance: Instance, api: BotApiServer, point: str = "none") -> int:
        """Rounds in a process of its own; its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{instance.layout.state} {api.url} {point}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def killed_and_started_again(self, instance: Instance, api: BotApiServer, point: str) -> None:
        assert self.rounds(instance, api, point) == -signal.SIGKILL
        assert self.rounds(instance, api) == 0


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    tests = Path(__file__).parent
    with subprocess.Popen(
        [sys.executable, str(CHILD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tests.parent}:{tests}", "PYTHONWARNINGS": ""},
    ) as process:
        yield Forker(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize("point", [*HEARING, *REPLYING])
def test_a_command_has_one_effect_and_at_most_one_answer(
    tmp_path: Path, api: BotApiServer, forker: Forker, point: str
) -> None:
    instance = with_channel(tmp_path)
    with desk_of(instance, api) as shop:
        order = shop.draft()
    api.write(f"/approve {order.digest}")
    forker.killed_and_started_again(instance, api, point)
    assert instance.rows("SELECT operator FROM approvals") == [("lucy",)]
    assert instance.rows("SELECT status FROM orders") == [("APPROVED",)]
    # An approval that had been committed without its record would now be said to be there already.
    [(outcome, reply, delivery)] = instance.rows("SELECT outcome, reply, delivery FROM channel_updates")
    assert (outcome, reply[:14], delivery) == ("done", "Approved until", REPLYING.get(point, "sent"))
    assert len(api.texts()) == (0 if point in {"channel_reply.committed", "channel.reply_leaves"} else 1)
    assert forker.rounds(instance, api) == 0
    assert api.waiting == []


@pytest.mark.parametrize("point", HEARING)
def test_a_question_becomes_one_work_item(
    tmp_path: Path, api: BotApiServer, forker: Forker, point: str
) -> None:
    instance = with_channel(tmp_path)
    api.write("How is the stock?")
    forker.killed_and_started_again(instance, api, point)
    assert instance.rows("SELECT session, status FROM work") == [("telegram:lucy", "READY")]
    assert len(api.texts()) == 1


@pytest.mark.parametrize("point", list(DELIVERING))
def test_a_report_leaves_at_most_once_unless_an_operator_says_so(
    tmp_path: Path, api: BotApiServer, forker: Forker, point: str
) -> None:
    instance = with_channel(tmp_path)
    with desk_of(instance, api) as shop:
        report = shop.report()
        forker.killed_and_started_again(instance, api, point)
        assert shop.delivery(report)[0] == DELIVERING[point]
        left = len(api.texts())
        assert left == (0 if point == "deliver.committed" else 1)
        if DELIVERING[point] == "sent":
            return
        assert work.uncertain_reports(shop.connection) == 1
        work.resolve_delivery(shop.connection, report, arrived=False, twice=True)
        assert forker.rounds(instance, api) == 0
        assert shop.delivery(report) == ("sent", "")
        assert len(api.texts()) == left + 1


def test_the_installed_way_a_question_is_answered_and_a_stop_is_quick(
    tmp_path: Path, api: BotApiServer
) -> None:
    instance = with_channel(tmp_path)
    api.write("How is the stock?")
    with Process(instance, pausing=None, **api.environment, STANDFAST_LOG="debug").ready() as process:
        eventually(lambda: any("Vanilla: 2 on hand" in text for text in api.texts()))
        eventually(lambda: instance.rows("SELECT delivery FROM reports") == [("sent",)])
        began = time.monotonic()
        assert process.terminate() == 0
        assert time.monotonic() - began < STOP_SECONDS
        assert re.search(r"channel: kind=question outcome=admitted work=[0-9a-f]{24}", process.log)
        assert SECRET not in process.log
        assert "STOPPING=1" in process.messages()


def test_a_stop_does_not_wait_for_a_server_that_hangs(tmp_path: Path, api: BotApiServer) -> None:
    instance = with_channel(tmp_path)
    api.fail("getUpdates", "slow", times=100, seconds=30)
    with Process(instance, pausing=None, **api.environment).ready() as process:
        eventually(lambda: api.asked("getUpdates") > 0)
        instance_work = instance.add().work
        eventually(lambda: instance.status(instance_work)[0] == "DONE")  # the passes go on
        began = time.monotonic()
        assert process.terminate() == 0
        assert time.monotonic() - began < STOP_SECONDS + 5


def test_waiting_with_a_channel_costs_next_to_nothing(tmp_path: Path, api: BotApiServer) -> None:
    """Ticks of the process's own CPU time, on a machine that may be busy: a loop without a pause has more."""
    instance = with_channel(tmp_path)
    with Process(instance, pausing=None, **api.environment).ready() as process:
        eventually(lambda: api.asked("getUpdates") > 1)
        before, asked, began = ticks(process.process.pid), api.asked("getUpdates"), time.monotonic()
        time.sleep(4 * POLL_SECONDS)
        seconds = time.monotonic() - began
        assert ticks(process.process.pid) - before <= 0.02 * seconds * os.sysconf("SC_CLK_TCK")
        assert api.asked("getUpdates") - asked <= seconds / POLL_SECONDS + 1


def ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
