"""Receipts: one whole chain that a machine can check, whatever happens to the recorder or to the files."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from standfast.errors import BadInput, Refused
from standfast.receipts import chain, page, recorder
from standfast.receipts.model import Draft, Receipt, Recorded

NOW = 1_790_000_000.0

DRAFT: dict[str, Any] = {
    "operation": "install",
    "run_id": "run-1",
    "instance": "lucy-agent",
    "host": "host.test",
    "started_at": NOW - 30,
    "finished_at": NOW,
    "release_before": None,
    "release_after": "0.1.0-0a1b2c3d-9f8e7d6c",
    "verdict": "done",
    "stopped_at": None,
    "reason": None,
    "checks": [{"name": "disk", "outcome": "pass", "observed": "9 GB free"}],
    "unit": {
        "name": "lucy-agent.service",
        "text_sha256": "ab" * 32,
        "active_state": "active",
        "sub_state": "running",
        "main_pid": 42,
        "n_restarts": 0,
        "exit_code": 0,
    },
    "boot": {"pid1_started_at": "2026-11-29T17:00:00Z"},
    "canary": {
        "work": "0192",
        "generation": 1,
        "seconds": 0.8,
        "run": {"id": "ab12", "release": "0.1.0-0a1b2c3d-9f8e7d6c", "pid": 42},
    },
    "phases": [{"name": "release", "started_at": NOW - 29}, {"name": "service", "started_at": NOW - 9.5}],
    "controller": {"ansible_core": "2.19.4", "user": "anna", "bundle_commit": "0a1b2c3d"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "receipts"
    made.mkdir(mode=0o700)
    return made


def draft(**changes: Any) -> Draft:
    return recorder.read_draft(json.dumps({**DRAFT, **changes}).encode())


def keep(folder: Path, run_id: str, **changes: Any) -> Recorded:
    return recorder.record(folder, draft(run_id=run_id, **changes), release="source", now=NOW + 1)


def test_receipts_are_chained_private_and_whole(folder: Path) -> None:
    first, second = keep(folder, "a"), keep(folder, "b", operation="uninstall")
    assert (first.receipt.sequence, second.receipt.sequence) == (1, 2)
    assert first.receipt.previous is None
    assert second.receipt.previous == first.receipt.digest
    assert Path(second.file).name == f"000002-uninstall-{second.receipt.digest[:8]}.json"
    assert Path(second.file).stat().st_mode & 0o7777 == 0o600
    checked = chain.verify(folder)
    assert (checked.verified, checked.receipts, checked.newest) == (True, 2, second.receipt.digest)


def test_times_are_text_and_phases_have_their_seconds(folder: Path) -> None:
    kept = keep(folder, "a").receipt
    assert kept.started_at.endswith("Z")
    assert kept.seconds == 30
    assert [(phase.name, phase.seconds) for phase in kept.phases] == [("release", 19.5), ("service", 9.5)]


def test_a_clock_that_steps_back_gives_no_negative_seconds(folder: Path) -> None:
    kept = keep(folder, "a", finished_at=NOW - 60).receipt
    assert kept.seconds == 0
    assert min(phase.seconds for phase in kept.phases) == 0


def test_recording_a_run_again_changes_nothing(folder: Path) -> None:
    first = keep(folder, "a")
    again = keep(folder, "a")
    assert (again.changed, again.file, again.receipt) == (False, first.file, first.receipt)
    assert len(list(folder.iterdir())) == 1
    with pytest.raises(Refused) as caught:
        keep(folder, "a", host="another.test")
    assert caught.value.code == "run_recorded"


def test_check_mode_says_what_it_would_record_and_writes_nothing(folder: Path) -> None:
    pend(folder, "early")
    told = recorder.record(folder, draft(), release="source", now=NOW, check=True)
    assert (told.changed, told.check, told.receipt.sequence) == (True, True, 2)
    assert told.adopted == ["pending-early.json"]
    assert [path.name for path in folder.iterdir()] == ["pending-early.json"]


def pend(folder: Path, run_id: str, **content: Any) -> Path:
    path = folder / f"pending-{run_id}.json"
    minimal = {
        "operation": "install",
        "run_id": run_id,
        "instance": "lucy-agent",
        "host": "host.test",
        "started_at": NOW - 90,
        "stopped_at": "Release | Python is there",
        **content,
    }
    path.write_text(json.dumps(minimal))
    return path


def test_pending_receipts_are_chained_first_as_failed_runs(folder: Path) -> None:
    keep(folder, "a")
    pend(folder, "early", surplus="ignored")
    pend(folder, "preflight", verdict="refused", reason="disk too small")
    kept = keep(folder, "b")
    assert kept.adopted == ["pending-early.json", "pending-preflight.json"]
    assert not chain.pending(folder)
    receipts = [Receipt.model_validate(entry.content) for entry in chain.entries(folder)]
    assert [(r.run_id, r.verdict, r.adopted_from) for r in receipts] == [
        ("a", "done", None),
        ("early", "failed", "pending-early.json"),
        ("preflight", "refused", "pending-preflight.json"),
        ("b", "done", None),
    ]
    assert chain.verify(folder).verified


def test_the_pending_receipt_of_the_same_run_gives_way_to_the_full_one(folder: Path) -> None:
    pend(folder, "a")
    assert keep(folder, "a").receipt.sequence == 1
    assert not chain.pending(folder)


def test_a_recorder_killed_in_the_middle_of_adopting_does_not_adopt_twice(folder: Path) -> None:
    path = pend(folder, "early")
    content = path.read_bytes()
    keep(folder, "a")
    path.write_bytes(content)  # as if the kill had come before the unlink
    keep(folder, "b")
    adopted = [e for e in chain.entries(folder) if e.content and e.content["adopted_from"]]
    assert len(adopted) == 1
    assert not chain.pending(folder)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"operation": "install"}'])
def test_an_unreadable_pending_receipt_is_told_and_left(folder: Path, content: str) -> None:
    (folder / "pending-bad.json").write_text(content)
    kept = keep(folder, "a")
    assert kept.not_adopted[0].startswith("pending-bad.json ")
    assert (folder / "pending-bad.json").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"password": "hunter2-Zq9"},
        {"unit": {"name": "x.service", "environment": "hunter2-Zq9"}},
        {"verdict": "hunter2-Zq9"},
        {"operation": "../../hunter2-Zq9"},
        {"started_at": "hunter2-Zq9"},
        {"started_at": -1},
        {"finished_at": 1e30},
        {"verdict": "failed"},
        {"reason": "but it is done"},
        {"checks": [{"name": "x", "outcome": "pass"}] * 501},
    ],
)
def test_a_bad_draft_is_refused_by_field_without_its_value(changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        draft(**changes)
    assert "hunter2-Zq9" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b" " * 1_048_577])
def test_what_is_not_a_draft_is_refused(data: bytes) -> None:
    with pytest.raises(BadInput):
        recorder.read_draft(data)


def test_a_long_or_strange_error_text_is_cut_not_lost(folder: Path) -> None:
    told = "\x1b[31mboom\n" + "x" * 9000 + "\ud800"
    kept = keep(folder, "a", verdict="failed", reason=told, stopped_at="Service | Started").receipt
    assert kept.reason is not None
    assert kept.reason.endswith("more characters)")
    assert len(kept.reason) < 4100
    assert chain.verify(folder).verified


def edit(folder: Path, number: int, change: Callable[[dict[str, Any]], None], *, redigest: bool) -> Path:
    path = next(folder.glob(f"{number:06d}-*"))
    content = json.loads(path.read_bytes())
    change(content)
    if redigest:
        content["digest"] = chain.digest_of(content)
    path.write_bytes(chain.pretty(content))
    return path


def problems(folder: Path) -> set[tuple[str, str]]:
    checked = chain.verify(folder)
    assert checked.verified == (not checked.differences)
    return {(difference.file, difference.problem) for difference in checked.differences}


def three(folder: Path) -> list[Path]:
    return [Path(keep(folder, run_id).file) for run_id in "abc"]


def test_an_edited_receipt_is_named(folder: Path) -> None:
    three(folder)
    path = edit(folder, 2, lambda content: content.update(host="elsewhere"), redigest=False)
    assert problems(folder) == {(path.name, "edited")}


def test_an_edit_that_fixes_its_own_digest_is_named(folder: Path) -> None:
    three(folder)
    path = edit(folder, 2, lambda content: content.update(host="elsewhere"), redigest=True)
    assert (path.name, "edited") in problems(folder)


def test_a_changed_form_is_an_edit(folder: Path) -> None:
    path = three(folder)[2]
    path.write_bytes(path.read_bytes().replace(b"  ", b" "))
    assert problems(folder) == {(path.name, "edited")}


def test_a_missing_receipt_is_named(folder: Path) -> None:
    paths = three(folder)
    paths[1].unlink()
    assert problems(folder) == {("000002-*", "missing")}


def test_a_missing_first_receipt_is_named(folder: Path) -> None:
    paths = three(folder)
    paths[0].unlink()
    assert ("000001-*", "missing") in problems(folder)


def test_reordered_receipts_are_named(folder: Path) -> None:
    paths = three(folder)
    spare = folder / "spare"
    paths[1].rename(spare)
    paths[2].rename(folder / paths[2].name.replace("000003", "000002"))
    spare.rename(folder / paths[1].name.replace("000002", "000003"))
    assert {problem for _, problem in problems(folder)} == {"reordered"}


def test_a_fork_is_named(folder: Path) -> None:
    paths = three(folder)
    content = json.loads(paths[2].read_bytes())
    content["run_id"] = "d"
    content["digest"] = chain.digest_of(content)
    fork = folder / chain.file_name(content)
    fork.write_bytes(chain.pretty(content))
    fork.chmod(0o600)
    assert problems(folder) == {(paths[2].name, "forked"), (fork.name, "forked")}


def test_a_file_that_is_no_receipt_or_open_to_others_is_named(folder: Path) -> None:
    paths = three(folder)
    (folder / "notes.txt").write_text("x")
    paths[0].chmod(0o644)
    paths[1].write_text("{")
    assert problems(folder) == {
        ("notes.txt", "foreign"),
        (paths[0].name, "exposed"),
        (paths[1].name, "unreadable"),
    }


def test_receipts_of_a_newer_release_are_verified_and_shown(folder: Path) -> None:
    three(folder)
    edit(folder, 3, lambda content: content.update(format=1, later_field={"x": 1}), redigest=True).rename(
        folder / chain.file_name(json.loads(next(folder.glob("000003-*")).read_bytes()))
    )
    assert chain.verify(folder).verified
    assert chain.find(folder, None).sequence == 3
    assert keep(folder, "d").receipt.sequence == 4
    assert chain.verify(folder).verified


def test_recording_goes_on_after_an_edited_receipt_but_not_after_an_unreadable_one(folder: Path) -> None:
    paths = three(folder)
    edit(folder, 3, lambda content: content.update(host="x"), redigest=False)
    assert keep(folder, "d").receipt.sequence == 4
    assert problems(folder) == {(paths[2].name, "edited")}
    next(folder.glob("000004-*")).write_text("{")
    with pytest.raises(Refused) as caught:
        keep(folder, "e")
    assert caught.value.code == "chain_unreadable"


def test_the_folder_must_be_private_and_there(folder: Path) -> None:
    folder.chmod(0o750)
    with pytest.raises(Refused) as caught:
        keep(folder, "a")
    assert caught.value.code == "receipts_mode"
    with pytest.raises(Refused) as caught:
        chain.verify(folder / "absent")
    assert caught.value.code == "no_receipts"
    folder.chmod(0o700)
    (folder.parent / "link").symlink_to(folder)
    with pytest.raises(Refused) as caught:
        chain.verify(folder.parent / "link")
    assert caught.value.code == "receipts_folder"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_folder_of_another_user_is_refused(folder: Path) -> None:
    os.chown(folder, 65534, -1)
    with pytest.raises(Refused) as caught:
        keep(folder, "a")
    assert caught.value.code == "receipts_owner"


def test_processes_that_record_at_once_make_one_chain(folder: Path) -> None:
    """Eight processes, one chain: nobody's receipt is lost, and no sequence is used twice."""
    script = (
        "import sys, json; from pathlib import Path; from standfast.receipts import recorder\n"
        "for n in range(4):\n"
        "    draft = {**json.loads(sys.argv[2]), 'run_id': f'{sys.argv[3]}-{n}'}\n"
        "    recorder.record(Path(sys.argv[1]), recorder.read_draft(json.dumps(draft).encode()),"
        " release='source', now=1.0)\n"
    )

    def run(name: str) -> int:
        arguments = [sys.executable, "-c", script, str(folder), json.dumps(DRAFT), name]
        return subprocess.run(arguments, check=False, env={"PYTHONPATH": ":".join(sys.path)}).returncode

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, "abcdefgh")) == [0] * 8
    checked = chain.verify(folder)
    assert (checked.verified, checked.receipts) == (True, 32)


def test_a_recorder_waits_for_the_lock_only_so_long(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "LOCK_PATIENCE", 0.05)
    with recorder.alone(folder), pytest.raises(Refused) as caught:
        keep(folder, "a")
    assert caught.value.code == "receipts_busy"


def test_the_page_and_the_list_say_what_an_operator_asks(folder: Path) -> None:
    keep(
        folder,
        "a",
        verdict="failed",
        stopped_at="Service | Started",
        reason="no\x1b[2Jbus",
        release_after=None,
    )
    pend(folder, "early")
    out = StringIO()
    page.show(chain.find(folder, "1"), Console(file=out, highlight=False, markup=False, emoji=False))
    for told in ("Receipt 1: install of lucy-agent", "failed", "Service | Started", "0192", "9 GB free"):
        assert told in out.getvalue()
    assert "\x1b" not in out.getvalue()
    listed = chain.listing(folder)
    assert [line.stopped_at for line in listed.receipts] == ["Service | Started"]
    assert listed.pending == ["pending-early.json"]


def test_showing_names_what_is_not_there_or_not_a_receipt(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        chain.find(folder, None)
    with pytest.raises(BadInput):
        chain.find(folder, "7")
    (tmp_path / "copy.json").write_text('{"format": 1}')
    with pytest.raises(BadInput):
        chain.find(folder, str(tmp_path / "copy.json"))
    kept = keep(folder, "a")
    Path(kept.file).rename(tmp_path / "copy.json")
    assert chain.find(folder, str(tmp_path / "copy.json")) == kept.receipt


def test_ids_that_a_template_turned_into_numbers_stay_ids(folder: Path) -> None:
    canary = {**DRAFT["canary"], "work": 12345678}
    kept = keep(folder, "a", canary=canary).receipt
    assert kept.canary is not None
    assert kept.canary.work == "12345678"


def test_what_a_template_left_empty_is_absent(folder: Path) -> None:
    unit = {"name": "lucy-agent.service", "exit_code": "", "main_pid": "42", "sub_state": ""}
    kept = keep(folder, "a", stopped_at="", reason="", release_before="", unit=unit).receipt
    assert (kept.stopped_at, kept.reason, kept.release_before) == (None, None, None)
    assert kept.unit is not None
    assert (kept.unit.exit_code, kept.unit.main_pid, kept.unit.sub_state) == (None, 42, None)


SWITCH: dict[str, Any] = {
    "outcome": "rolled_back",
    "step": "canary",
    "resumed_from": "start",
    "resumed_because": "its process was gone",
    "silence_seconds": 3.456,
    "facts_before": "ab" * 32,
    "facts_after": "cd" * 32,
    "explained": ["work DONE: +1"],
    "backup": "/srv/lucy/backups/0001",
    "migrated": {"work": [5, 6]},
    "below_floor": "0.2.1: the repair does not concern us",
    "ways_on": ["fix forward"],
    "steps": [{"name": "back-start", "started_at": "2026-11-30T01:02:03.456Z"}],
}


def test_a_change_of_code_stands_in_its_receipt_and_on_its_page(folder: Path) -> None:
    failed = {"operation": "upgrade", "verdict": "failed", "reason": "nothing was finished", "switch": SWITCH}
    kept = keep(folder, "a", **failed)
    assert keep(folder, "a", **failed).changed is False
    stored = json.loads(Path(kept.file).read_text())
    assert stored["switch"] == SWITCH
    assert chain.verify(folder).verified is True
    text = StringIO()
    page.show(kept.receipt, Console(file=text, highlight=False, markup=False, emoji=False))
    shown = " ".join(text.getvalue().split())
    for part in (
        "outcome rolled_back, failed at canary",
        "resumed from start: its process was gone",
        "silence 3.46 s",
        f"facts before {'ab' * 32}",
        f"facts after {'cd' * 32}",
        "explained work DONE: +1",
        "backup /srv/lucy/backups/0001",
        "migrated work 5 -> 6",
        "below floor 0.2.1: the repair does not concern us",
        "way on fix forward",
        "step 2026-11-30T01:02:03.456Z back-start",
    ):
        assert part in shown, part


@pytest.mark.parametrize(
    "wrong", [{"outcome": "fine"}, {"silence_seconds": -1}, {"secret": "x"}, {"facts_before": "no"}]
)
def test_a_change_of_code_that_is_not_one_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="switch"):
        draft(operation="upgrade", switch={**SWITCH, **wrong})


def test_a_receipt_without_a_change_of_code_has_no_such_part_on_its_page(folder: Path) -> None:
    text = StringIO()
    page.show(keep(folder, "a").receipt, Console(file=text, highlight=False, markup=False, emoji=False))
    assert "Switch" not in text.getvalue()
