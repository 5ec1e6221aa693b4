"""What a person reads at the end of a run over many hosts, and the fleet receipt that a machine reads.

Ansible loads this with every playbook of this folder. A task of a playbook could not do it: once all hosts of
a batch have failed, no further task and no further play runs. So the playbooks publish what they know of a
host with `set_stats` (tasks/result.yml), and what became of each host is put together here, at the very end,
whatever the end was:

    done, unchanged    it ended well, with or without a change
    failed, refused    as its operation receipt says
    unreachable        it was lost on the way; the host's own journal and the next run know what became of it
    not attempted      the roll had stopped before it

A fleet is a run for several hosts, or for the rest of one (`--limit @receipts/rest-of-...`): that run names
the receipt it goes on from, and shows what was done before it, too. Check mode and a look leave no receipt.
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
STATUS_REGISTER = "__host_status"
"""Where roles/host/tasks/status.yml registers a host's answer."""
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
    # Whatever ended its play, a host that did not tell of its end is not done.
    if told["outcome"] == "begun":
        cut = "interrupted" if interrupted else "cut off"
        return "failed", f"{cut} while at work: run it again, its host knows how far it came"
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


def who() -> str:
    """Who runs this; a container's user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError since Python 3.13
        return str(os.getuid())


def write_private(path: Path, text: str) -> None:
    """Whole or not at all, for its owner alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A name of its own: what a killed run left must not be in the way of the next.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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


def told_end(operation: str, rows: list[Json], *, check: bool, limit: str) -> list[str]:
    """How many hosts came to which end, and how to go on with the rest."""
    counts = Counter(row["outcome"] for row in rows)
    told = ", ".join(f"{counts[name]} {name}" for name in OUTCOMES if counts[name])
    lines = [
        f"{operation}: {len(rows)} hosts, {told}{' (check mode: nothing was changed)' if check else ''}."
    ]
    if rest_of(rows):
        lines.append(f"To go on, once the cause is gone: the same command with --limit {limit}")
    return lines


def rest_of(rows: Iterable[Json]) -> list[str]:
    """The hosts that a roll still has before it."""
    return [row["host"] for row in rows if row["outcome"] not in WELL]


def keep_rest(path: Path, rows: list[Json]) -> None:
    """A file for `--limit @FILE`; it goes once every host that it names is done."""
    rest = rest_of(rows)
    if rest:
        write_private(path, "".join(f"{host}\n" for host in rest))
    elif path.exists() and set(path.read_text().split()) <= {row["host"] for row in rows}:
        path.unlink()


def batches_of(hosts: int, serial: Sequence[Any]) -> list[int]:
    """The sizes of the batches, as Ansible cuts them."""
    sizes: list[int] = []
    while sum(sizes) < hosts:
        wanted = pct_to_int(serial[min(len(sizes), len(serial) - 1)], hosts)
        left = hosts - sum(sizes)
        sizes.append(min(wanted, left) if wanted > 0 else left)
    return sizes


# --- the table of status: plain functions ----------------------------------------------------------------

STATUS_COLUMNS = (
    "HOST",
    "INSTANCE",
    "RELEASE",
    "SCHEMA",
    "PAUSED",
    "OLDEST",
    "UNCERTAIN",
    "BACKUP",
    "REHEARSAL",
    "CANARY",
    "RESTARTS",
    "ATTENTION",
)


def answer_of(result: Json) -> Json:
    """What a host answered: its last line that is a JSON object; a host without one is told by its words."""
    lines = str(result.get("stdout") or "").splitlines()
    for line in reversed(lines):
        if line.startswith("{"):
            answer: Json = json.loads(line)
            return answer
    words = clean("; ".join(lines) or result.get("msg") or "no answer", LONG)
    return {"row": {}, "report": [], "attention": [f"ATTENTION status: {words}"]}


def lost_answer(reason: str) -> Json:
    """What stands for a host that could not be reached."""
    words = f"ATTENTION unreachable: {clean(reason, LONG)}"
    return {"row": {}, "report": [], "attention": [words], "unreachable": True}


def age(seconds: float | None) -> str:
    """In the unit that says enough: 59s, 59m, 47h, 9d."""
    if seconds is None:
        return "-"
    for limit, size, unit in ((60, 1, "s"), (3_600, 60, "m"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds / 86_400:.0f}d"


def short_releases(releases: Iterable[str]) -> dict[str, str]:
    """Each release id without its last part, where that still tells it from the others."""
    ids = set(releases)
    cut = {release: release.rpartition("-")[0] or release for release in ids}
    seen = Counter(cut.values())
    return {release: short if seen[short] == 1 else release for release, short in cut.items()}


def status_cells(host: str, answer: Json, short: dict[str, str]) -> list[str]:
    """One line of the table; `-` is not known, or none."""
    row = answer["row"]
    if answer.get("unreachable"):
        return [host, "UNREACHABLE", *["-"] * (len(STATUS_COLUMNS) - 3), str(len(answer["attention"]))]
    schema, due = row.get("schema"), row.get("schema_due")
    # The number of migrations that made the store, and how many more the release would run.
    migrations = "-" if schema is None else str(sum(schema.values())) + (f"+{due}" if due else "")
    unsure = [row.get("uncertain_orders"), row.get("uncertain_reports")]
    paused = {True: "PAUSED", False: "no"}.get(row.get("paused"), "-")
    return [
        host,
        row.get("instance") or "-",
        short.get(row.get("release") or "", "-"),
        migrations,
        paused,
        age(row.get("oldest_work")),
        "-" if None in unsure else "no" if unsure == [0, 0] else f"{unsure[0]}o {unsure[1]}r",
        age(row.get("backup_age")),
        age(row.get("rehearsal_age")),
        age(row.get("canary_age")),
        "-" if row.get("restarts") is None else str(row["restarts"]),
        str(len(answer["attention"]) or "-"),
    ]


def told_status(answers: dict[str, Json]) -> list[str]:
    """The table of all hosts; below it what differs between them, and what asks for a person."""
    releases = [str(answer["row"]["release"]) for answer in answers.values() if answer["row"].get("release")]
    short = short_releases(releases)
    lines = ["", *table(STATUS_COLUMNS, (status_cells(host, one, short) for host, one in answers.items()))]
    if len(set(releases)) > 1:
        mixed = ", ".join(f"{release} on {number}" for release, number in Counter(releases).most_common())
        lines += ["", f"Mixed releases: {mixed}."]
    for host, answer in answers.items():
        # The whole report where there is room for it: for a single host.
        told = [*(answer["report"] if len(answers) == 1 else []), *answer["attention"]]
        lines += ["", f"{host}:", *(f"  {line}" for line in told)] if told else []
    asking = sum(bool(answer["attention"]) for answer in answers.values())
    verdict = f"{asking} need attention" if asking else "nothing needs attention"
    return [*lines, "", f"status: {len(answers)} hosts, {verdict}."]


def status_content(answers: dict[str, Json], now: float) -> Json:
    """The same for a machine."""
    hosts = [
        {
            "host": host,
            **answer["row"],
            "reachable": not answer.get("unreachable", False),
            "attention": [line.removeprefix("ATTENTION ") for line in answer["attention"]],
        }
        for host, answer in answers.items()
    ]
    return {"format": 1, "at": rfc3339(now), "ok": not any(one["attention"] for one in hosts), "hosts": hosts}


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
        self.looking = False
        self.answers: dict[str, Json] = {}
        self.status_json = ""
        self.process = os.getpid()
        # After Ctrl-C Ansible tells nobody how the run ended.
        atexit.register(self.interrupted)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Comes once for each batch."""
        if play.get_name() == self.play:
            return
        self.play = play.get_name()
        variables = play.get_variable_manager().get_vars(play=play)
        self.hosts = list(variables["ansible_play_hosts_all"])
        self.status_json = str(variables.get("status_json") or "")
        if play.serial and len(self.hosts) > 1:
            sizes = ", ".join(map(str, batches_of(len(self.hosts), play.serial)))
            self._display.display(
                f"FLEET: {len(self.hosts)} hosts in batches of {sizes}; {self.hosts[0]} comes first."
            )

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:  # noqa: ARG002
        """Even if no host answers, the table of status has them."""
        self.looking = self.looking or task.register == STATUS_REGISTER

    def v2_runner_on_ok(self, result: Any) -> None:
        """A host's play has published something of it."""
        if result.task.register == STATUS_REGISTER:
            self.answers[result.host.get_name()] = answer_of(result.result)
            return
        data = (result.result.get("ansible_stats") or {}).get("data") or {}
        told = data.get("standfast")
        if not told or not told.get("operation"):
            return
        roll = self.rolls.setdefault(
            told["operation"], Roll(told["operation"], self.hosts, datetime.now(UTC).timestamp())
        )
        name = result.host.get_name()
        # What was known before stays known: a failure may know less than the step before it.
        roll.told.setdefault(name, {}).update({key: value for key, value in told.items() if value != ""})

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """It may be rescued: what counts is said at the end."""
        if result.task.register == STATUS_REGISTER:
            self.answers[result.host.get_name()] = answer_of(result.result)
        if not ignore_errors:
            self.failures[result.host.get_name()] = result.task.get_name()

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """A lost host publishes nothing any more."""
        reason = str(result.result.get("msg") or "unreachable")
        self.answers[result.host.get_name()] = lost_answer(reason)
        for roll in self.rolls.values():
            roll.lost[result.host.get_name()] = reason

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """The end, good or bad."""
        for roll in self.rolls.values():
            roll.failed = {host: self.failures.get(host, "unknown") for host in stats.failures}
            roll.lost = {host: roll.lost.get(host, "unreachable") for host in stats.dark}
            self.tell(roll, set(stats.changed), interrupted=False)
        self.rolls = {}
        if self.looking:
            self.tell_status()

    def tell_status(self) -> None:
        """Print the table, and write it for a machine when asked."""
        answers = {host: self.answers.get(host) or lost_answer("it gave no answer") for host in self.hosts}
        lines = told_status(answers)
        if self.status_json:
            content = status_content(answers, datetime.now(UTC).timestamp())
            try:
                write_private(Path(self.status_json), json.dumps(content, indent=2) + "\n")
            except OSError as error:
                lines.append(f"ATTENTION: {self.status_json} could not be written: {error}")
        for line in lines:
            self._display.display(line)

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
        keep = not check and all(told.get("kept", True) for told in roll.told.values())
        earlier = continued(folder, roll.operation, rows) if keep else None
        if earlier is not None:
            rows = with_earlier(rows, *earlier)
        if len(rows) == 1:
            return
        rest = folder / f"rest-of-{roll.operation}"
        limit = f"@{os.path.relpath(rest)}" if keep else f"'{','.join(rest_of(rows))}'"
        lines = ["", *told_rows(rows), "", *told_end(roll.operation, rows, check=check, limit=limit)]
        if earlier is not None:
            lines.append(f"Continues {earlier[0]}.")
        if keep:
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
            "controller": {"ansible_core": ansible_core, "user": f"{who()}@{platform.node()}"},
        }
        if earlier is not None:
            content = (folder / earlier[0]).read_bytes()
            run["continues"] = {"file": earlier[0], "sha256": hashlib.sha256(content).hexdigest()}
        path = folder / f"fleet-{now:%Y%m%dT%H%M%SZ}-{run_id}.json"
        receipt = receipt_of(roll, rows, run, interrupted=interrupted)
        try:
            write_private(path, json.dumps(receipt, indent=2) + "\n")
            keep_rest(folder / f"rest-of-{roll.operation}", rows)
        except OSError as error:
            return f"ATTENTION: the fleet receipt could not be kept: {error}"
        return f"Receipt: {os.path.relpath(path)}"
