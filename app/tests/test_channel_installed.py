"""A channel through the installed service: a real process, a real Bot API on loopback, a real supplier."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from bot_api import STRANGER, BotApiServer, bot_api
from channeling import with_channel
from supplying import TOKEN, Supplier, supplier
from support import Instance, Process, eventually

from standfast import authority

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


def taken_over(instance: Instance, account: Supplier) -> dict[str, str]:
    """Give the account to this instance's epoch; the environment in which its service buys there."""
    with instance.store() as store, account.client() as client:
        body = {
            "epoch": authority.operations(store).epoch,
            "replaces": client.get("/account").json()["epoch"],
        }
        assert client.post("/account/epoch", json=body).status_code == 200
    return {"STANDFAST_SUPPLIER_URL": account.url, "STANDFAST_SUPPLIER_TOKEN": TOKEN}


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
    environment = api.environment | taken_over(instance, account)
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
