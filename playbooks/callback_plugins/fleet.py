"""What a person reads at the end of a run over many hosts, and the fleet receipt that a machine reads.

Ansible loads this with every playbook of this folder. A task of a playbook could not do it: once all hosts of
a batch have failed, no further task and no further play runs. So the playbooks publish what they know of a
host with `set_stats` (tasks/result.yml), and what became of each host is put together here, at the very end,
whatever the end was:

    done, unchanged    it ended well, with or without a change
    failed, refused    as its operation receipt says
    unreachable        it was lost on the way; the host's own journal and the next run know what became of it
    not attempted      the roll had stopped before it

A fleet is a run for several hosts, or for the rest of one (`--limit`): that run names the receipt it goes on
from, and shows what was done before it, too. Check mode leaves no receipt.
"""

from __future__ import annotations

import atexit
import getpass
import hashlib
import json
import os
import platform
import secrets
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible import context
from ansible.plugins.callback import CallbackBase
from ansible.release import __version__ as ansible_core
from ansible.utils.helpers import pct_to_int

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DOCUMENTATION = """
name: fleet
type: aggregate
short_description: The summary of a run over many hosts, and its receipt
description:
  - Prints one table of all hosts at the end of a run, and keeps it as a fleet receipt on the controller.
"""

Json = dict[str, Any]

WELL = ("done", "unchanged")
OUTCOMES = (*WELL, "failed", "refused", "unreachable", "not attempted")
SHORT, LONG = 72, 400
"""Characters of a reason in the table, and in the receipt."""
FACTS = ("before", "after", "target", "stopped_at", "silence_seconds", "run_id")


# --- what became of the hosts: plain functions -------------------------------------------------------------


@dataclass
class Roll:
    """One operation over the hosts of a play, as it was seen so far."""

    operation: str
    hosts: list[str]
    """All of them, in their order; also those that no batch has reached."""
    begun_at: float
    told: dict[str, Json] = field(default_factory=dict)
    """What each host's play published; a host that is missing was not attempted."""
    failed: dict[str, str] = field(default_factory=dict)
    """Host -> the task at which Ansible itself saw it fail last."""
    lost: dict[str, str] = field(default_factory=dict)
    """Host -> why it can not be reached any more."""


def clean(text: object, limit: int) -> str:
    """One line without control characters, cut at a limit."""
    line = " ".join("".join(c if unicodedata.category(c)[0] != "C" else " " for c in str(text)).split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def outcome_of(roll: Roll, host: str, changed: set[str], *, interrupted: bool) -> tuple[str, str]:
    """What became of a host, and why."""
    told = roll.told.get(host)
    if told is None:
        return "not attempted", ""
    bad = went_wrong(roll, host, told, interrupted=interrupted)
    if bad is not None:
        return bad
    ended = told["outcome"] if told["outcome"] in WELL else "done" if host in changed else "unchanged"
    return str(ended), ""


def went_wrong(roll: Roll, host: str, told: Json, *, interrupted: bool) -> tuple[str, str] | None:
    """The bad end of a host that was attempted, or None."""
    if host in roll.lost:
        return "unreachable", roll.lost[host]
    if told["outcome"] in {"failed", "refused"}:
        return str(told["outcome"]), str(told.get("reason") or "no reason was given").removeprefix(
            "Refused: "
        )
    if host in roll.failed:
        return "failed", f"stopped at: {roll.failed[host]}"
    if told["outcome"] == "begun" and interrupted:
        return "failed", "interrupted while at work: run it again, its host knows how far it came"
    return None


def rows_of(roll: Roll, changed: set[str], *, interrupted: bool = False) -> list[Json]:
    """One row for each host of the play, in its order."""
    rows = []
    for host in roll.hosts:
        outcome, reason = outcome_of(roll, host, changed, interrupted=interrupted)
        told = roll.told.get(host, {})
        facts = {name: told.get(name) or None for name in FACTS}
        row = {"host": host, "instance": told.get("instance") or None, "outcome": outcome, **facts}
        rows.append({**row, "reason": clean(reason, LONG) or None, "earlier": None})
    return rows


def target_of(rows: Iterable[Json]) -> str | None:
    """The release that a roll is about, once any host could say it."""
    return next((str(row["target"]) for row in rows if row["target"]), None)


def newest_receipt(folder: Path, operation: str) -> tuple[str, Json] | None:
    """The newest fleet receipt of an operation: its file's name and content."""
    for path in sorted(folder.glob("fleet-*.json"), reverse=True):
        try:
            receipt = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(receipt, dict) and receipt.get("operation") == operation:
            return path.name, receipt
    return None


def continued(folder: Path, operation: str, rows: list[Json]) -> tuple[str, Json] | None:
    """The receipt that this run goes on from: the newest of its operation, of the same release, whose
    unfinished hosts are the ones that this run is for."""
    found = newest_receipt(folder, operation)
    if found is None:
        return None
    before = {row["host"]: row["outcome"] for row in found[1].get("hosts", [])}
    rest = {host for host, outcome in before.items() if outcome not in WELL}
    targets = {target_of(rows), found[1].get("target")} - {None}
    same = len(targets) <= 1 and bool(set(before) - rest)
    return found if same and {row["host"] for row in rows} <= rest else None


def with_earlier(rows: list[Json], name: str, receipt: Json) -> list[Json]:
    """The whole roll in its first order: this run's hosts, and what the receipt says of all others."""
    now = {row["host"]: row for row in rows}
    return [
        now.get(row["host"]) or {**row, "earlier": row.get("earlier") or name} for row in receipt["hosts"]
    ]


def verdict_of(rows: Iterable[Json], *, interrupted: bool) -> str:
    """`done` once every host is; else `stopped`, or `interrupted` by whoever ran it."""
    if all(row["outcome"] in WELL for row in rows):
        return "done"
    return "interrupted" if interrupted else "stopped"


def receipt_of(roll: Roll, rows: list[Json], run: Json, *, interrupted: bool = False) -> Json:
    """What is kept of a run. Nothing in it comes from a credential: names, ids, times and reasons."""
    counts = Counter(row["outcome"] for row in rows)
    return {
        "format": 1,
        "operation": roll.operation,
        "verdict": verdict_of(rows, interrupted=interrupted),
        "target": target_of(rows),
        "started_at": rfc3339(roll.begun_at),
        **run,
        "counts": {name: counts[name] for name in OUTCOMES if counts[name]},
        "hosts": rows,
    }


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def write_private(path: Path, text: str) -> None:
    """Whole or not at all, for its owner alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Aligned lines, never coloured, so that `grep` and `awk` can read them."""
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def told_rows(rows: Iterable[Json]) -> list[str]:
    """The summary as a table."""
    columns = ("HOST", "INSTANCE", "BEFORE", "AFTER", "OUTCOME", "REASON")
    return table(
        columns,
        (
            (
                row["host"],
                row["instance"] or "-",
                row["before"] or "-",
                row["after"] or "-",
                row["outcome"] + (" earlier" if row["earlier"] else ""),
                clean(row["reason"] or "-", SHORT),
            )
            for row in rows
        ),
    )


def told_end(operation: str, rows: list[Json], *, check: bool) -> list[str]:
    """How many hosts came to which end, and how to go on with the rest."""
    counts = Counter(row["outcome"] for row in rows)
    told = ", ".join(f"{counts[name]} {name}" for name in OUTCOMES if counts[name])
    lines = [
        f"{operation}: {len(rows)} hosts, {told}{' (check mode: nothing was changed)' if check else ''}."
    ]
    rest = [row["host"] for row in rows if row["outcome"] not in WELL]
    if rest:
        lines.append(f"To go on, once the cause is gone: the same command with --limit '{','.join(rest)}'")
    return lines


def batches_of(hosts: int, serial: Sequence[Any]) -> list[int]:
    """The sizes of the batches, as Ansible cuts them."""
    sizes: list[int] = []
    while sum(sizes) < hosts:
        wanted = pct_to_int(serial[min(len(sizes), len(serial) - 1)], hosts)
        left = hosts - sum(sizes)
        sizes.append(min(wanted, left) if wanted > 0 else left)
    return sizes


# --- what Ansible calls ------------------------------------------------------------------------------------


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Collects what the plays publish, and tells of it once."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "fleet"
    CALLBACK_NEEDS_ENABLED = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.rolls: dict[str, Roll] = {}
        self.hosts: list[str] = []
        self.play = ""
        self.failures: dict[str, str] = {}
        self.process = os.getpid()
        # After Ctrl-C Ansible tells nobody how the run ended.
        atexit.register(self.interrupted)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Comes once for each batch."""
        if play.get_name() == self.play:
            return
        self.play = play.get_name()
        self.hosts = list(play.get_variable_manager().get_vars(play=play)["ansible_play_hosts_all"])
        if play.serial and len(self.hosts) > 1:
            sizes = ", ".join(map(str, batches_of(len(self.hosts), play.serial)))
            self._display.display(
                f"FLEET: {len(self.hosts)} hosts in batches of {sizes}; {self.hosts[0]} comes first."
            )

    def v2_runner_on_ok(self, result: Any) -> None:
        """A host's play has published something of it."""
        data = (result.result.get("ansible_stats") or {}).get("data") or {}
        told = data.get("standfast")
        if not told or not told.get("operation"):
            return
        roll = self.rolls.setdefault(
            told["operation"], Roll(told["operation"], self.hosts, datetime.now(UTC).timestamp())
        )
        name = result.host.get_name()
        # What was known before stays known: a failure may know less than the step before it.
        known = {key: value for key, value in roll.told.get(name, {}).items() if value}
        roll.told[name] = {**known, **{key: value for key, value in told.items() if value not in (None, "")}}

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """It may be rescued: what counts is said at the end."""
        if not ignore_errors:
            self.failures[result.host.get_name()] = result.task.get_name()

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """A lost host publishes nothing any more."""
        reason = str(result.result.get("msg") or "unreachable")
        for roll in self.rolls.values():
            roll.lost[result.host.get_name()] = reason

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """The end, good or bad."""
        for roll in self.rolls.values():
            roll.failed = {host: self.failures.get(host, "unknown") for host in stats.failures}
            roll.lost = {host: roll.lost.get(host, "unreachable") for host in stats.dark}
            self.tell(roll, set(stats.changed), interrupted=False)
        self.rolls = {}

    def interrupted(self) -> None:
        """Whatever was not told is told when the process ends; never in a worker."""
        if os.getpid() == self.process:
            for roll in self.rolls.values():
                self.tell(roll, set(roll.told), interrupted=True)
        self.rolls = {}

    def tell(self, roll: Roll, changed: set[str], *, interrupted: bool) -> None:
        """Print the summary and keep the receipt, when there is more than one host to speak of."""
        check = any(told.get("check") for told in roll.told.values())
        folder = Path(next(told["receipts"] for told in roll.told.values()))
        rows = rows_of(roll, changed, interrupted=interrupted)
        earlier = None if check else continued(folder, roll.operation, rows)
        if earlier is not None:
            rows = with_earlier(rows, *earlier)
        if len(rows) < 2:
            return
        lines = ["", *told_rows(rows), "", *told_end(roll.operation, rows, check=check)]
        if earlier is not None:
            lines.append(f"Continues {earlier[0]}.")
        if not check:
            lines.append(self.kept(roll, rows, folder, earlier, interrupted=interrupted))
        for line in lines:
            self._display.display(line)

    def kept(
        self,
        roll: Roll,
        rows: list[Json],
        folder: Path,
        earlier: tuple[str, Json] | None,
        *,
        interrupted: bool,
    ) -> str:
        """Keep the receipt; the line that says where it is, or why it is not there."""
        now, run_id = datetime.now(UTC), secrets.token_hex(6)
        run: Json = {
            "finished_at": rfc3339(now.timestamp()),
            "run_id": run_id,
            "continues": None,
            "limit": context.CLIARGS.get("subset"),
            "controller": {"ansible_core": ansible_core, "user": f"{getpass.getuser()}@{platform.node()}"},
        }
        if earlier is not None:
            content = (folder / earlier[0]).read_bytes()
            run["continues"] = {"file": earlier[0], "sha256": hashlib.sha256(content).hexdigest()}
        path = folder / f"fleet-{now:%Y%m%dT%H%M%SZ}-{run_id}.json"
        receipt = receipt_of(roll, rows, run, interrupted=interrupted)
        try:
            write_private(path, json.dumps(receipt, indent=2) + "\n")
        except OSError as error:
            return f"ATTENTION: the fleet receipt could not be kept: {error}"
        return f"Receipt: {os.path.relpath(path)}"
