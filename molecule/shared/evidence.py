"""What tests ask of an installed host more than once: finished work, files, processes, receipts."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from target import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from target import Host, Play, UnitState

# Where the kernel and systemd keep what changes by itself, and the journal.
VOLATILE = (
    "/proc", "/sys", "/dev", "/run/systemd", "/run/udev", "/run/log", "/run/dbus", "/run/credentials",
    "/var/log", "/var/lib/systemd/random-seed", "/var/lib/systemd/timers", "/var/lib/systemd/timesync",
)  # fmt: skip

LOCK = "/run/standfast/deploy.lock"


def good(play: Play, changed: int | None = None) -> None:
    """The run succeeded (and changed so many things); else the end of what it printed is shown."""
    told = play.output[-3000:]
    assert play.rc == 0, told
    assert changed in {None, play.changed}, told


def listing(host: Host, *paths: str, without: Sequence[str] = ()) -> set[str]:
    """One line for each file below `paths`: name, owner, mode, kind, link target, size and time.

    Two listings are compared as sets, so that a failed comparison names the files.
    """
    left_out = " -o ".join(f"-path {shlex.quote(path)}" for path in (*VOLATILE, *without))
    # A folder's own time is left out: reading it may touch it, and what it holds is listed anyway.
    tests = f"\\( {left_out} \\) -prune -o -type d -printf '%p %u:%g %m d\\n'"
    tests += " -o -printf '%p %u:%g %m %y %l %s %T@\\n'"
    found = host.run(f"find {' '.join(paths)} {tests}", check=False, timeout=120)
    assert found.rc == 0 or "No such file" in found.stderr, f"{found.command}: {found.stderr}"
    return set(found.stdout.splitlines())


def modes(host: Host, *paths: str, without: Sequence[str] = ()) -> set[str]:
    """As `listing`, without sizes and times: what two hosts installed alike have in common."""
    return {
        line if line.endswith(" d") else " ".join(line.split(" ")[:5])
        for line in listing(host, *paths, without=without)
    }


def now(host: Host) -> str:
    """The host's time, in the form of the store's times (they compare as text)."""
    return host.run(["date", "-u", "+%Y-%m-%dT%H:%M:%S.%3NZ"]).stdout.strip()


def service(host: Host, instance: str = "lucy-agent", user: str = "lucy") -> UnitState:
    return host.user_service(user, f"{instance}.service")


def running(host: Host, instance: str = "lucy-agent", user: str = "lucy") -> UnitState:
    """The unit's state; it must be running."""
    state = service(host, instance, user)
    assert (state.active, state.sub) == ("active", "running"), state
    assert state.main_pid > 0, state
    return state


def properties(host: Host, *names: str, instance: str = "lucy-agent") -> dict[str, str]:
    """Properties of the unit, as its manager shows them."""
    words = [f"/usr/local/bin/{instance}", "systemctl", "show", f"{instance}.service"]
    shown = host.run([*words, f"--property={','.join(names)}"]).stdout
    return dict(line.split("=", 1) for line in shown.splitlines())


def finished(host: Host, session: str, after: str = "", instance: str = "lucy-agent") -> list[dict[str, Any]]:
    """Work of a session that was *admitted* after a time and is DONE, oldest first."""
    listed = host.cli("work", "list", "--limit", "1000", "--status", "DONE", instance=instance)["work"]
    return [w for w in reversed(listed) if w["session"] == session and w["admitted_at"] > after]


def body(host: Host, work: str) -> str:
    """The text of the one report of a work item, which must have been delivered."""
    reports = wait_until(
        lambda: [r for r in host.cli("report", "list", "--work", work)["reports"] if r["delivery"] == "sent"],
        20,
        f"the report of work {work} is sent",
    )
    assert len(reports) == 1, reports
    delivered = host.run(["cat", f"/srv/lucy/state/outbox/{reports[0]['id']}.txt"]).stdout
    text = str(reports[0]["body"])
    assert text in delivered
    return text


def database(host: Host) -> str:
    """A digest of every byte of the store; not of its log's index (-shm), where readers leave marks."""
    return host.run("cd /srv/lucy/state && sha256sum agent.sqlite && sha256sum agent.sqlite-wal").stdout


def database_at_rest(host: Host) -> str:
    """The same, once the service has nothing to do: it writes only when it has."""
    seen = [""]

    def rests() -> bool:
        seen.append(database(host))
        return seen[-1] == seen[-2]

    wait_until(rests, 60, "the service has nothing to do", every=2)
    return seen[-1]


def canary(host: Host, pid: int, instance: str = "lucy-agent") -> dict[str, Any]:
    """New work is finished, by the process `pid`."""
    proof = host.cli("canary", "--expect-pid", str(pid), instance=instance, timeout=90)
    assert proof["run"]["pid"] == pid, proof
    return proof


def receipts(host: Host, root: str = "/srv/lucy") -> dict[str, dict[str, Any]]:
    """The operation receipts on the host by file name, in their order; pending ones too."""
    # All in one look: name, text, name, text.
    told = host.run(f"cd {root}/receipts && for n in $(ls); do printf '%s\\0' $n; cat $n; printf '\\0'; done")
    words = told.stdout.split("\0")
    return dict(sorted(zip(words[:-1:2], map(json.loads, words[1::2]), strict=True)))


def copies(folder: Path) -> dict[str, dict[str, Any]]:
    """The copies on the controller, by file name."""
    return {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def strangers(host: Host) -> list[str]:
    """Processes that came from outside (an operator's, or a playbook's) and are still there: not of PID 1."""
    table = host.run(["ps", "-eo", "pid=,ppid=,args="]).stdout.splitlines()
    split = [line.split(None, 2) for line in table]
    return [args for pid, ppid, args in split if ppid == "0" and pid != "1" and "ps -eo pid=" not in args]


def expired(host: Host) -> dict[str, Any] | None:
    """Wait until the lock of a run that died has expired; the lock, if there was one."""
    text = host.run(["cat", LOCK], check=False).stdout
    lock: dict[str, Any] | None = json.loads(text) if text else None
    if lock:
        wait_until(
            lambda: float(host.run("cut -d' ' -f1 /proc/uptime").stdout) > lock["expires"],
            120,
            "its lock has expired",
        )
    return lock


def freed(host: Host, others: Sequence[str] = ()) -> dict[str, Any] | None:
    """Wait until nothing of a run that died works on and its lock has expired; the lock, if there was one.

    `others`: strangers that are not that run's.
    """
    expired(host)
    # After that wait, and not before it: a task may begin on the host a moment after its run has died.
    wait_until(lambda: set(strangers(host)) <= set(others), 120, "the dead run's last task has ended")
    return expired(host)  # that task may have been the one that takes the lock


def sessions(host: Host) -> list[str]:
    """Logins, as logind lists them; a lingering user's own manager is none."""
    listed = json.loads(host.run(["loginctl", "list-sessions", "--json=short"]).stdout)
    return [str(session) for session in listed if not str(session["class"]).startswith("manager")]
