"""A channel through the installed service: a real process, a real server on loopback, a real supplier."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bot_api import STRANGER, BotApiServer, bot_api
from channeling import with_channel
from supplying import Supplier, supplier
from support import Instance, Process, eventually
from webhook_receiver import receiver

from standfast.cli import main as cli
from standfast.operations.health import look

FLOOD = 40


@pytest.fixture
def api() -> Iterator[BotApiServer]:
    with bot_api() as made:
        yield made


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Supplier]:
    (tmp_path / "supplier").mkdir()
    with supplier(tmp_path / "supplier") as made:
        yield made


def drafts(instance: Instance) -> dict[str, str]:
    """The digest of each draft, by product."""
    return dict(instance.rows("SELECT sku, digest FROM orders WHERE status = 'DRAFT'"))


def status(instance: Instance, digest: str) -> str:
    [(found,)] = instance.rows("SELECT status FROM orders WHERE digest = ?", digest)
    return str(found)


def test_operators_decide_through_the_running_service_and_nobody_else_does(
    tmp_path: Path, api: BotApiServer, account: Supplier
) -> None:
    """Beside a flood of questions, a stranger, a kill, and a server that hands out an approval once more."""
    instance = with_channel(tmp_path, low=True)
    environment = api.environment | account.taken_over_by(instance.epoch())
    held = instance.add(session="held").work
    assert instance.claim(owner="another").work == held
    with Process(instance, pausing=None, **environment).ready() as process:
        eventually(lambda: len(drafts(instance)) == 2)
        vanilla, strawberry = (drafts(instance)[sku] for sku in ("vanilla", "strawberry"))

        # Who is no operator decides nothing and hears nothing; what is not the digest is refused.
        api.write(f"/approve {vanilla}", sender=STRANGER)
        api.write(f"/approve {vanilla[:-1]}")
        eventually(lambda: any("no order has exactly this digest" in text for text in api.texts()))
        assert api.texts(STRANGER) == []
        assert instance.rows("SELECT * FROM approvals") == []

        # The decisions come last of many.
        with api.lock:
            for number in range(FLOOD):
                api.write(f"Question {number}?")
            api.write("/status")
            approval = api.write(f"/approve {vanilla}")
        eventually(lambda: status(instance, vanilla) == "CONFIRMED")
        eventually(lambda: any(f"/approve {strawberry}" in text for text in api.texts()))
        process.kill()
    assert process.process.returncode == -signal.SIGKILL

    api.put_again(approval)
    with Process(instance, pausing=None, **environment).ready() as process:
        api.write(f"/revoke {strawberry}")
        api.write(f"/cancel {held}")
        eventually(lambda: status(instance, strawberry) == "REVOKED")
        eventually(lambda: instance.status(held)[0] == "CANCELED")
        assert process.terminate() == 0
    assert [one["sku"] for one in account.receipts()] == ["vanilla"]
    assert instance.rows("SELECT operator FROM approvals") == [("lucy",)]
    assert sum(text.startswith("Approved until") for text in api.texts()) == 1


def delivery(instance: Instance, work: str) -> tuple[str, str]:
    """The only report of a work item, and where it is; empty before there is one."""
    rows = instance.rows("SELECT id, delivery FROM reports WHERE work = ?", work)
    return rows[0] if rows else ("", "")


def command(instance: Instance, *words: str) -> int:
    return cli.main(["--json", "--state", str(instance.layout.state), *words])


def test_a_webhook_of_the_running_service_gets_each_report_once_whatever_becomes_of_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = with_channel(tmp_path, "webhook_idempotent = false", kind="webhook")
    with receiver() as made, Process(instance, STANDFAST_WEBHOOK_URL=made.url).ready() as process:
        told = instance.add("How is the stock?", session="told").work
        eventually(lambda: delivery(instance, told)[1] == "sent")

        # The receiver takes the next one, and the answer does not come before the time-out.
        made.silent = threading.Event()
        unheard = instance.add("How is the stock now?", session="unheard").work
        eventually(lambda: delivery(instance, unheard)[1] == "sending")
        eventually(lambda: delivery(instance, unheard)[1] == "unknown", seconds=60)
        made.silent.set()
        made.silent = None
        health = look(instance.layout, instance.clock.now())
        assert health.uncertain_reports == 1
        assert [str(one.rule) for one in health.attention] == ["uncertain_reports"]

        # Nobody but the operator has it sent again. The service goes on meanwhile.
        later = instance.add("And now?", session="later").work
        eventually(lambda: delivery(instance, later)[1] == "sent")
        report = delivery(instance, unheard)[0]
        assert command(instance, "report", "resolve", report, "--sent") == 0
        assert delivery(instance, unheard) == (report, "sent")
        capsys.readouterr()
        assert command(instance, "health") == 0, capsys.readouterr().out
        assert process.terminate() == 0
    keys = [json.loads(body)["id"] for _, body in made.received]
    assert keys == [delivery(instance, work)[0] for work in (told, unheard, later)]
