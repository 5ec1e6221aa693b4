"""What is done by hand leaves the receipt that a playbook keeps of it; what is refused leaves none."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from daily import Day, day, sha256

from standfast.errors import StandfastError
from standfast.operations import receipting
from standfast.operations.receipting import with_receipt
from standfast.operations.restore.restoring import RestoreResult
from standfast.receipts import chain
from standfast.receipts.model import Receipt


def kept(shop: Day) -> list[Receipt]:
    """Every receipt, the newest last."""
    folder = shop.layout.receipts
    assert chain.verify(folder).verified
    return [Receipt.model_validate(entry.content) for entry in chain.entries(folder)]


def seen(receipt: Receipt) -> dict[str, str]:
    return {check.name: check.observed for check in receipt.checks}


def test_a_day_by_hand_leaves_one_receipt_for_each_operation(tmp_path: Path) -> None:
    with day(tmp_path) as shop:
        shop.begin().go_on()
        code, foreseen = shop.cli("restore", shop.morning, check=True)
        assert (code, foreseen["receipt"], kept(shop)) == (0, None, [])
        code, restored = shop.cli("restore", shop.morning)
        assert code == 0, restored
        assert shop.cli("restore", shop.morning)[1]["changed"] is False
        plan = shop.inspect()
        digest = sha256(shop.answer(plan).read_bytes())
        code, told = shop.recover(plan, digest="0" * 64)
        assert (code, told["refused"]["code"]) == (3, "digest_differs")
        code, recovered = shop.recover(plan, digest=digest)
        assert code == 0, recovered
        assert shop.recover(plan, digest=digest)[1]["duplicate"] is True
        receipts = kept(shop)
    assert [(one.operation, one.verdict) for one in receipts] == [
        ("restore", "done"),
        ("inspect", "done"),
        ("recover", "done"),
    ]
    assert Path(restored["receipt"]).is_file()
    assert seen(receipts[0])["epoch"] == restored["epoch"]
    assert restored["safety_backup"] in seen(receipts[0])["restore"]
    assert seen(receipts[2])["plan"] == digest
    assert "2 orders, 2600 cents spent" in seen(receipts[2])["recover"]


def test_a_playbook_keeps_its_own(tmp_path: Path) -> None:
    with day(tmp_path) as shop:
        shop.begin()
        assert shop.cli("restore", "--no-receipt", shop.morning)[0] == 0
        out = shop.plan_file()
        assert shop.cli("account", "inspect", "--no-receipt", "--operator", "lucy", "--out", out)[0] == 0
        assert kept(shop) == []


def test_one_that_fails_half_way_is_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with day(tmp_path) as shop:
        shop.begin()

        def fail() -> RestoreResult:
            raise StandfastError("paused, and then the disk was full")

        with pytest.raises(StandfastError, match="disk was full"):
            with_receipt(shop.layout, "restore", fail, lambda found: found.seen())
        [receipt] = kept(shop)
        assert (receipt.verdict, receipt.reason) == ("failed", "paused, and then the disk was full")

        def unwritable(*_: Any, **__: Any) -> str:
            raise OSError("no space")

        monkeypatch.setattr(receipting, "leave", unwritable)
        with pytest.raises(StandfastError, match=r"done: restore; but its receipt .* no space"):
            with_receipt(shop.layout, "restore", shop.restore_here, lambda found: found.seen())
        assert shop.control().paused


def test_without_a_folder_for_it_nothing_is_begun(tmp_path: Path) -> None:
    with day(tmp_path) as shop:
        shop.begin()
        shop.layout.receipts.rmdir()
        before = shop.control()
        code, told = shop.cli("restore", shop.morning)
        assert (code, told["refused"]["code"]) == (3, "no_receipts")
        assert shop.control() == before
        with closing(sqlite3.connect(shop.layout.database)) as connection:
            stored = connection.execute("SELECT count(*) FROM restores").fetchone()
        assert json.dumps(stored) == "[0]"
