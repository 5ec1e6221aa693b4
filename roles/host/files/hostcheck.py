"""Look at a host, and hold its deploy lock, before anything of Standfast is there.

Sent on stdin, so nothing is left on the host; standard library only and Python >= 3.9, because the host may
have nothing newer (and then this is what says so). The request is one JSON object, the last line of stdin (it
may be longer than an argument can be, and other users see arguments); the subcommand is in the arguments; the
answer is one JSON object on stdout:

  python3 -I -c "import sys; text, _, REQUEST = sys.stdin.buffer.read().rpartition(b'\\n'); exec(text)" WORDS

    preflight          every check as {name, outcome: pass|attention|refuse, observed, remedy},
                       and the survey; changes nothing; exit 0 pass, 4 attention, 3 refuse
    status             {"row": facts for a table of many hosts, "report" and "attention": lines for a person},
                       with what the installed release's health says; exit 0, or 4 with attention
    survey             what is there now, without a judgement; changes nothing
    service            the unit's facts; {"wait": s, "until": "active"|"inactive", "not_pid": n} waits
    watch              {"seconds": s, "pid": n}: whether the service goes on with that process, without a
                       restart, and is well at the end: "trouble" says what is wrong, exit 4
    lock acquire|renew|release|show
                       one deploy lock per host, changed only under flock of a guard file; its expiry counts
                       on CLOCK_BOOTTIME, so that a stepped clock neither frees nor prolongs it; acquire also
                       answers with the survey taken while holding it; release keeps it where a switch is
                       still at work
    discard            removes a release folder without a seal and this run's copy of its archive ("staged"),
                       if the lock is still this run's
    place              {"user", "path", "text", "mode"}: writes (or with text null removes) one file below the
                       user's home AS that user, so that a link planted there can not point root elsewhere;
                       with "unit" true or "job" root's record first learns the text as one of ours
    stage              {"path", "login"}: copies a file, read AS the user, to where the login can fetch it
    unstage            removes what was staged for this instance
    proof              root's record learns that the release was shown to work with this unit and agent.env
    condemn            {"release", "why"}: root's record learns that the release was seen not to work
    forget             root's record of an instance that is taken off the host: with the state it goes, else
                       its verdicts and its rollback floor stay, which guard the state
    pending-receipt    keeps a failed run's draft as receipts/pending-RUN.json while no CLI can chain it

A refusal is {"changed": false, "refused": {code, reason, observed, remedy}} with exit 3, and words on stderr.
"""

from __future__ import annotations

import calendar
import contextlib
import errno
import fcntl
import grp
import hashlib
import json
import os
import platform
import pwd
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Json = dict[str, Any]

REQUEST: bytes = globals().get("REQUEST", b"")  # set by the line that reads this text from stdin

PATH_RULE = re.compile(r"/[A-Za-z0-9_./-]+\Z")
RULES = {
    "instance": (re.compile(r"[a-z][a-z0-9-]{0,47}\Z"), "a lower-case letter, then up to 47 of a-z 0-9 -"),
    "user": (re.compile(r"[a-z_][a-z0-9_-]{0,31}\Z"), "a letter a-z or _, then up to 31 of a-z 0-9 _ -"),
    "count": (re.compile(r"[0-9]{1,3}\Z"), "a number from 0 to 999"),
    "release": (re.compile(r"[a-z0-9][A-Za-z0-9.+-]{0,99}\Z"), "a release id as the manifest gives it"),
}
REMOTE_FILE_SYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "ncpfs",
    "lustre",
}
VOLATILE_FILE_SYSTEMS = {"tmpfs", "ramfs"}
SYSTEM_FOLDERS = (
    "/etc",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/boot",
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/tmp",
    "/var/tmp",
)
SYSTEMCTL_SECONDS = 20
REGISTRY = "/var/lib/standfast"
HELPER_FOLDER = "/usr/local/bin"
SKEW_ATTENTION, SKEW_REFUSE = 120, 86_400
EARLIEST_CLOCK = 1_767_225_600  # 2026-01-01: before this source existed
FEWEST_INODES = 8_000
UNIT_PROPERTIES = (
    "ActiveState,SubState,MainPID,NRestarts,ExecMainStatus,Result,UnitFileState,NeedDaemonReload,Job"
)
UNIT_RELEASE = re.compile(r"^ExecStart=(?P<root>/\S+)/releases/(?P<id>[^/\s]+)/venv/bin/", re.MULTILINE)
RECEIPT = re.compile(r"(?P<sequence>[0-9]{6,12})-[a-z0-9-]+\.json\Z")
PENDING_RECEIPT = re.compile(r"pending-[A-Za-z0-9_.:@+-]+\.json\Z")
RECEIPTS_READ = 100
DEPLOYMENTS = {"install", "upgrade", "rollback", "uninstall"}
STAGINGS = {"install", "upgrade"}  # what puts a release on the host
# What needs an installed instance.
OPERATIONS = {"upgrade", "rollback", "configure", "backup", "restore", "recover", "rehearse"}
SWITCHES = {"upgrade", "rollback", "configure"}  # what goes on where an earlier one was cut short
HISTORY_KEPT = 50  # verdicts in root's record
LONGEST_WHY = 500
# PEP 440 without the epoch and the hyphens, which no release's version may hold.
VERSION = re.compile(
    r"(?P<release>[0-9]+(?:\.[0-9]+)*)"
    r"(?:\.?(?P<pre>alpha|beta|preview|pre|rc|a|b|c)\.?(?P<pre_number>[0-9]*))?"
    r"(?P<post>\.?(?:post|rev|r)\.?(?P<post_number>[0-9]*))?"
    r"(?P<dev>\.?dev\.?(?P<dev_number>[0-9]*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:\.[a-z0-9]+)*))?\Z"
)
JOBS = ("backup", "rehearse")  # each with a service and a timer unit of the user's manager
EARLIEST_SYSTEMD = 250  # `systemd-analyze verify` reads a user's unit with --recursive-errors from there on
STOPPED = {"inactive", "failed", "unknown"}
# Run as the service user: the version of each component. Nothing but SQLite ever opens a live store.
STORE_READER = """
import json, sqlite3, sys
store = sqlite3.connect("file:" + sys.argv[1] + "?mode=ro", uri=True, timeout=10)
named = store.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").fetchone()
print(json.dumps(dict(store.execute("SELECT component, version FROM meta")) if named else {}))
"""
HEALTH_SECONDS = 60
WATCH_EVERY = 2.0
# The rules of health by which a service does not do its work.
UNWELL = {
    "paused",
    "marker_disagrees",
    "other_host",
    "store_newer",
    "service_down",
    "ready_old",
    "running_old",
}
EXIT_REFUSED, EXIT_ATTENTION, EXIT_USAGE = 3, 4, 2


class Refusal(Exception):
    """A rule says no; nothing was changed."""

    def __init__(self, code: str, reason: str, observed: str, remedy: str) -> None:
        super().__init__(reason)
        self.words = f"Refused: {reason}: {observed}. To do: {remedy}"
        self.answer: Json = {
            "changed": False,
            "refused": {"code": code, "reason": reason, "observed": observed, "remedy": remedy},
        }


# --- small readers ----------------------------------------------------------------------------------------


def read_bytes(path: str | Path, limit: int = 16_000_000) -> bytes | None:
    """What a regular file holds, or None; never follows a link and never blocks on a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit)


def read_text(path: str | Path) -> str | None:
    data = read_bytes(path)
    return None if data is None else data.decode("utf-8", "replace")


def read_json(path: str | Path) -> Json | None:
    """A JSON object, {} for anything else (it may hold what it likes), None without a file."""
    text = read_text(path)
    if text is None:
        return None
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    return {}


def sha256_of(path: str | Path) -> str | None:
    data = read_bytes(path)
    return None if data is None else hashlib.sha256(data).hexdigest()


def nearest_existing(path: str) -> str:
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def owner_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def describe(path: str) -> Json | None:
    """Kind, owner, group and mode of a path itself (a link is not followed), or None."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    kinds = ((stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"), (stat.S_ISREG, "file"))
    kind = next((name for test, name in kinds if test(found.st_mode)), "other")
    return {
        "kind": kind,
        "owner": owner_name(found.st_uid),
        "group": group_name(found.st_gid),
        "mode": f"{stat.S_IMODE(found.st_mode):04o}",
        "modified_at": found.st_mtime,
    }


def account(name: str) -> Json | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return {
        "name": name,
        "uid": entry.pw_uid,
        "gid": entry.pw_gid,
        "group": group_name(entry.pw_gid),
        "home": entry.pw_dir,
        "shell": entry.pw_shell,
    }


def run(
    argv: list[str], user: Json | None = None, seconds: float = SYSTEMCTL_SECONDS
) -> tuple[int, str, str]:
    """One bounded command, clean environment, as an account; (exit, stdout, stderr), 124 on time-out."""
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    drop = user if user is not None and os.geteuid() == 0 else None
    if user is not None:
        environment.update(HOME=user["home"], USER=user["name"], XDG_RUNTIME_DIR=f"/run/user/{user['uid']}")
    try:
        done = subprocess.run(
            argv,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=seconds,
            user=drop["uid"] if drop else None,
            group=drop["gid"] if drop else None,
            extra_groups=[] if drop else None,
        )
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer within {seconds} s"
    except OSError as error:
        return 127, "", str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def properties(argv: list[str], user: Json | None = None) -> Json:
    code, out, err = run(argv, user)
    found: Json = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    found["exit"], found["error"] = code, err.strip()
    return found


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def process_started_at(pid: int) -> float | None:
    """Epoch seconds at which a process started, from its start tick (which no clock step changes)."""
    text = read_text(f"/proc/{pid}/stat")
    if not text:
        return None
    ticks = int(text.rpartition(")")[2].split()[19])
    return time.time() - (boottime() - ticks / os.sysconf("SC_CLK_TCK"))


# --- file systems -----------------------------------------------------------------------------------------


def mounts(mountinfo: str) -> list[tuple[str, str, str]]:
    """(mount point, type, source) of each line of a mountinfo file, in mount order."""
    found = []
    for line in (read_text(mountinfo) or "").splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if separator and len(fields) > 4 and len(tail) > 1:
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
            found.append((point, tail[0], tail[1]))
    return found


def mount_of(path: str, mountinfo: str) -> tuple[str, str, str]:
    """The mount that holds a path: the longest mount point above it, the latest of equals."""
    best = ("/", "unknown", "unknown")
    for point, kind, source in mounts(mountinfo):
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, kind, source)
    return best


def encrypted_sign(user: str, home: str, mountinfo: str) -> str | None:
    """What shows that a home is only readable once its user logs in, or None."""
    if mount_of(home, mountinfo)[1] == "ecryptfs":
        return f"{home} is an ecryptfs mount"
    signs = [
        f"{home}/.ecryptfs",
        f"/home/.ecryptfs/{user}",
        f"{home}.homedir",
        f"{home}.home",
        f"/var/lib/systemd/home/{user}.identity",
    ]
    for sign in signs:
        if os.path.lexists(sign):
            return f"{sign} exists"
    if os.path.isdir(home) and fscrypt_policy(home):
        return f"{home} has an fscrypt policy"
    return None


def fscrypt_policy(folder: str) -> bool:
    get_policy_ex = 0xC0096616  # FS_IOC_GET_ENCRYPTION_POLICY_EX
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(descriptor, get_policy_ex, bytearray((24).to_bytes(8, "little") + bytes(24)))
    except OSError as error:
        return error.errno in {errno.EOVERFLOW, errno.ENOKEY}
    finally:
        os.close(descriptor)
    return True


# --- the survey -------------------------------------------------------------------------------------------


def unit_path(home: str, instance: str) -> str:
    return f"{home}/.config/systemd/user/{instance}.service"


def wanted_path(home: str, instance: str) -> str:
    return f"{home}/.config/systemd/user/default.target.wants/{instance}.service"


def unit_release(text: str, root: str) -> str | None:
    """The release that a unit's ExecStart names below this root, or None."""
    match = UNIT_RELEASE.search(text)
    return match["id"] if match and match["root"] == root else None


def releases_below(root: str) -> list[Json]:
    """Every release folder with its seal, oldest seal first; unsealed and hidden ones included."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"{root}/releases"):
            seal = read_json(f"{entry.path}/installed.json")
            if entry.name.startswith("."):
                continue
            found.append(
                {
                    "id": entry.name,
                    "sealed": bool(seal),
                    "sealed_at": str((seal or {}).get("sealed_at", "")),
                }
            )
    return sorted(found, key=lambda release: (release["sealed_at"], release["id"]))


def leftovers_below(root: str) -> list[str]:
    """Dot names in the releases folder: archives of runs that died."""
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir(f"{root}/releases") if name.startswith("."))
    return []


def receipts_below(root: str) -> Json:
    """The newest receipt of a deployment, the newest that brought the service from one release to another,
    the newest of each operation, and how many wait to be chained.

    The service user owns these files, so they may hold anything; nothing is allowed because of them.
    """
    try:
        names = os.listdir(f"{root}/receipts")
    except OSError:
        return {"last": None, "moved": None, "pending": 0, "newest": {}}
    pending = sum(1 for name in names if PENDING_RECEIPT.match(name))
    numbered = sorted((int(match["sequence"]), name) for name in names if (match := RECEIPT.match(name)))
    shown = ("operation", "verdict", "run_id", "release_after", "finished_at", "sequence")
    newest: Json = {}
    moved: Json | None = None
    for _, name in reversed(numbered[-RECEIPTS_READ:]):
        receipt = read_json(f"{root}/receipts/{name}") or {}
        operation = receipt.get("operation")
        if moved is None and has_moved(receipt):
            moved = {key: receipt.get(key) for key in shown}
        if isinstance(operation, str) and operation not in newest:
            newest[operation] = {**{key: receipt.get(key) for key in shown}, "seen": seen_checks(receipt)}
    deployed = [receipt for operation, receipt in newest.items() if operation in DEPLOYMENTS]
    # The newest comes first.
    last = deployed[0] if deployed else None
    return {"last": last, "moved": moved, "pending": pending, "newest": newest}


def has_moved(receipt: Json) -> bool:
    """Whether it says that the service was brought to another release, or back, and it went well."""
    operation, done = receipt.get("operation"), receipt.get("verdict") == "done"
    if not isinstance(operation, str) or operation not in DEPLOYMENTS or not done:
        return False
    # A rollback that was cut short may have moved the link `current` in the run before.
    return operation == "rollback" or receipt.get("release_before") != receipt.get("release_after")


def upgrade_below(root: str) -> Json | None:
    """{operation, run_id, step, outcome, to, from} of the journal of the last switch, or None without one.

    The service user owns that file, too: what is not a short text counts as nothing.
    """
    journal = read_json(f"{root}/state/upgrade.json")
    if journal is None:
        return None
    told = {name: journal.get(name) for name in ("operation", "run_id", "step", "outcome", "to", "from")}
    return {
        name: value if isinstance(value, str) and len(value) <= 100 else None for name, value in told.items()
    }


def seen_checks(receipt: Json) -> Json:
    """What a receipt says was observed, by check; {} where it is not written as one."""
    rows = receipt.get("checks")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return {str(row.get("name")): row.get("observed") for row in found}


# --- root's own record of an instance ---------------------------------------------------------------------


def registry(request: Json) -> str:
    return str(request.get("registry") or REGISTRY)


def record_path(request: Json) -> str:
    return f"{registry(request)}/records/{request['instance']}.json"


def read_record(request: Json) -> Json:
    """{units, jobs: digests of texts that were placed, proof: {release, previous, unit_sha256, env_at,
    switch}, history: [{release, version, floor, at, verdict: good|bad, why}] oldest first, floor: {version,
    release}}.

    `switch` is the run in the journal of the last switch before the proof. `floor` is the highest rollback
    floor of any release that was ever shown to work, or None.
    """
    record = read_json(record_path(request)) or {}
    return {
        "units": record.get("units") or [],
        "jobs": record.get("jobs") or {},
        "proof": record.get("proof") or {},
        "history": record.get("history") or [],
        "floor": record.get("floor"),
    }


def write_record(request: Json, record: Json) -> None:
    path = record_path(request)
    for folder in (registry(request), os.path.dirname(path)):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o755)
            os.chmod(folder, 0o755)
    place_file(path, json.dumps({"format": 1, **record}, sort_keys=True, indent=1) + "\n", 0o644)


def proven_release(proof: Json, unit_sha256: str | None, env_at: float | None) -> str | None:
    """The release that was shown to work, if its unit and its agent.env are still the same files."""
    same = proof.get("unit_sha256") == unit_sha256 and proof.get("env_at") == env_at
    return str(proof["release"]) if same and proof.get("release") else None


def verdicts(record: Json) -> Json:
    """The latest verdict of each release, the release judged last at the end."""
    latest: Json = {}
    for entry in record["history"]:
        latest.pop(entry["release"], None)
        latest[entry["release"]] = entry["verdict"]
    return latest


def previous_good(record: Json, current: str | None) -> str | None:
    """The release other than the current one that was shown to work last, and not condemned since."""
    judged = verdicts(record)
    # A record of before there was a history knows two releases; so does one whose history was cut.
    known = [release for release, verdict in judged.items() if verdict == "good"]
    older = [record["proof"].get(name) for name in ("previous", "release")]
    candidates = [release for release in older if release and release not in judged] + known
    return next((release for release in reversed(candidates) if release != current), None)


def prove(request: Json) -> tuple[Json, int]:
    found = survey(request)
    record, release = found["record"], request["release"]
    facts = release_facts(request)
    if facts["version"] is None or facts["floor"] is None:
        raise Refusal(
            "manifest_unreadable",
            f"the manifest of release {release} does not say its version and its rollback floor",
            f"{request['root']}/releases/{release}/manifest.json: {json.dumps(facts)}",
            "install the release again from its archive",
        )
    record["proof"] = {
        "release": release,
        "previous": previous_good(record, release),
        "unit_sha256": found["unit"]["sha256"],
        "env_at": env_at(found, request),
        "switch": (found["upgrade"] or {}).get("run_id"),
    }
    # A switch puts the unit in place by itself, as the service user.
    unit = found["unit"]["sha256"]
    if unit and unit not in record["units"]:
        record["units"] = [*record["units"][-1:], unit]
    record["floor"] = raised_floor(record["floor"], {"version": facts["floor"], "release": release})
    write_record(request, judged(record, facts, "good", ""))
    return {"changed": True}, 0


def condemn(request: Json) -> tuple[Json, int]:
    """The release was seen not to work; what root's record says of its floor stays."""
    why = request.get("why")
    if not isinstance(why, str) or not why.strip() or not why.isprintable() or len(why) > LONGEST_WHY:
        raise ValueError(f"why: one line of 1 to {LONGEST_WHY} printable characters")
    broken = input_fault("release", request["release"])
    if broken:
        raise ValueError(f"release is {request['release']!r}, not {broken}")
    write_record(request, judged(read_record(request), release_facts(request), "bad", why))
    return {"changed": True}, 0


def forget(request: Json) -> tuple[Json, int]:
    """Of a record whose state stays, what guards that state; a later install must not go below its floor."""
    path, record = record_path(request), read_record(request)
    if not os.path.lexists(path):
        return {"changed": False}, 0
    if request.get("delete_state"):
        os.unlink(path)
        return {"changed": True}, 0
    kept = {"history": record["history"], "floor": record["floor"]}
    if read_json(path) == {"format": 1, **kept}:
        return {"changed": False}, 0
    write_record(request, kept)
    return {"changed": True}, 0


def judged(record: Json, facts: Json, verdict: str, why: str) -> Json:
    """The record with one verdict more; the oldest go first."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry = {**facts, "at": at, "verdict": verdict, "why": why}
    return {**record, "history": [*record["history"], entry][-HISTORY_KEPT:]}


def release_facts(request: Json) -> Json:
    """{release, version, floor} as the manifest in root's own folder says; None for what it does not."""
    manifest = read_json(f"{request['root']}/releases/{request['release']}/manifest.json") or {}
    version, floor = manifest.get("version"), manifest.get("rollback_floor")
    return {
        "release": request["release"],
        "version": version if version_key(version) else None,
        "floor": floor if version_key(floor) else None,
    }


def raised_floor(before: Json | None, floor: Json) -> Json:
    """The higher of two floors; the earlier one of equals. Nothing ever lowers it."""
    if before is None:
        return floor
    known = version_key(before.get("version"))
    # What is on record and can not be compared stays: a person has to look at it.
    return before if known is None or known >= version_key(floor["version"]) else floor


def version_key(version: Any) -> tuple[Any, ...] | None:
    """What sorts versions as PEP 440 orders them; None for what is no version."""
    match = VERSION.match(version) if isinstance(version, str) and len(version) <= 100 else None
    if match is None:
        return None
    numbers = [int(part) for part in match["release"].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    alone = match["dev"] and not match["pre"] and not match["post"]
    pre = (-1,) if alone else (9,)  # 1.dev1 comes before 1a1, and 1a1 before 1
    if match["pre"]:
        stage = {"a": 0, "alpha": 0, "b": 1, "beta": 1}.get(match["pre"], 2)
        pre = (stage, int(match["pre_number"] or 0))
    post = int(match["post_number"] or 0) if match["post"] else -1
    dev = (0, int(match["dev_number"] or 0)) if match["dev"] else (1,)
    local = [
        (1, int(part), "") if part.isdigit() else (0, 0, part) for part in (match["local"] or "").split(".")
    ]
    return numbers, pre, post, dev, local if match["local"] else []


def env_at(found: Json, request: Json) -> float | None:
    """When agent.env was changed last; never a digest of it, which would tell short secrets."""
    return (found["paths"][f"{request['root']}/state/agent.env"] or {}).get("modified_at")


def service_facts(instance: str, user: Json) -> Json:
    """The unit as its manager sees it; times are epoch seconds, `release` is what the process really runs."""
    show = properties(
        ["systemctl", "--user", "show", f"{instance}.service", f"--property={UNIT_PROPERTIES}"], user
    )
    pid = int(show.get("MainPID") or 0)
    command = (read_text(f"/proc/{pid}/cmdline") or "").split("\0")[0] if pid else ""
    running = re.search(r"/releases/([^/]+)/venv/bin/", command)
    return {
        "systemctl_exit": show["exit"],
        "error": show["error"],
        "active_state": show.get("ActiveState", "unknown"),
        "sub_state": show.get("SubState", "unknown"),
        "result": show.get("Result", ""),
        "main_pid": pid,
        "n_restarts": int(show.get("NRestarts") or 0),
        "exit_code": int(show.get("ExecMainStatus") or 0),
        "enabled": show.get("UnitFileState") == "enabled",
        "reload_needed": show.get("NeedDaemonReload") == "yes",
        "job": show.get("Job", "") not in {"", "0"},
        "started_at": process_started_at(pid) if pid else None,
        "release": running[1] if running else None,
    }


def job_facts(instance: str, user: Json | None, root: str, manager: bool) -> Json:
    """Of each scheduled job: {job: {files: {path: sha256 or None}, release, enabled, active, next}}."""
    folder = f"{user['home']}/.config/systemd/user" if user else None
    found = {}
    for job in JOBS:
        service, timer = (f"{folder}/{instance}-{job}.{part}" for part in ("service", "timer"))
        files = {path: sha256_of(path) for path in (service, timer)} if folder else {}
        show: Json = {}
        if manager and any(files.values()):
            wanted = "--property=UnitFileState,ActiveState,NextElapseUSecRealtime"
            show = properties(["systemctl", "--user", "show", os.path.basename(timer), wanted], user)
        found[job] = {
            "files": files,
            "release": unit_release(read_text(service) or "", root) if folder else None,
            "enabled": show.get("UnitFileState") == "enabled",
            "active": show.get("ActiveState") == "active",
            "next": show.get("NextElapseUSecRealtime", ""),
        }
    return found


def other_instances(request: Json) -> list[str]:
    """The names of this user's other instances."""
    user, instance, names = request["user"], request["instance"], []
    for path in sorted(Path(registry(request), "instances").glob("*.json")):
        entry = read_json(path) or {}
        if entry.get("user") == user and entry.get("instance") != instance:
            names.append(str(entry.get("instance")))
    return names


def survey(request: Json) -> Json:
    """What is on the host now for this instance; reads only."""
    instance, user_name, root = request["instance"], request["user"], request["root"]
    user = account(user_name)
    path = unit_path(user["home"], instance) if user else None
    text = read_text(path) if path else None
    current = os.path.basename(os.readlink(f"{root}/current")) if os.path.islink(f"{root}/current") else None
    manager = bool(user) and os.path.exists(f"/run/user/{user['uid'] if user else 0}/systemd/private")
    service = service_facts(instance, user) if user and manager and path else None
    releases = releases_below(root)
    places = [
        root,
        *(
            f"{root}/{name}"
            for name in (
                "instance.json",
                "releases",
                "current",
                "state",
                "backups",
                "receipts",
                "state/agent.env",
                "state/shop.toml",
                "state/agent.sqlite",
            )
        ),
        f"{registry(request)}/instances/{instance}.json",
    ]
    found: Json = {
        "user": user,
        "paths": {place: describe(place) for place in places},
        "identity": read_json(f"{root}/instance.json"),
        "registered": read_json(f"{registry(request)}/instances/{instance}.json"),
        "current": current,
        "releases": releases,
        "unit": {
            "path": path,
            "sha256": sha256_of(path) if path else None,
            "release": unit_release(text, root) if text else None,
            "modified_at": (describe(path) or {}).get("modified_at") if path else None,
            # Without a manager nothing else can say whether it would start at boot.
            "wanted": wanted_path(user["home"], instance) if user else None,
            "is_wanted": bool(user) and os.path.lexists(wanted_path(user["home"] if user else "", instance)),
        },
        "helper_sha256": sha256_of(f"{HELPER_FOLDER}/{instance}"),
        "lingering": os.path.exists(f"/var/lib/systemd/linger/{user_name}"),
        "lingering_ours": os.path.exists(f"{REGISTRY}/lingering/{user_name}"),
        "receipts": receipts_below(root),
        "record": read_record(request),
        "other_instances": other_instances(request),
        "manager": manager,
        "service": service,
        "jobs": job_facts(instance, user, root, manager),
        "boot": {"pid1_started_at": process_started_at(1), "pid1_start_ticks": pid1_ticks()},
    }
    proof = found["record"]["proof"]
    found["upgrade"] = upgrade_below(root)
    found["proven"] = proven_release(proof, found["unit"]["sha256"], env_at(found, request))
    if verdicts(found["record"]).get(found["proven"]) == "bad":
        found["proven"] = None
    found["previous_good"] = previous_good(found["record"], current)
    found["prunable"] = prunable(found, request)
    found["untold"] = untold(found)
    found["unproven"] = unproven(found, request)
    found["start"] = start_plan(found, request)
    found["removal"] = removal_plan(found, request)
    return found


def unproven(found: Json, request: Json) -> list[str]:
    """Why new work must show that the target release works though nothing is left to change; [] if on record.

    From root's own record too: a run that died before its proof is completed by the next. The receipts are
    the service user's to write, so they can only ask for one proof more.
    """
    release, last = request.get("release") or "", found["receipts"]["last"] or {}
    reasons = {
        "it is not the current release": found["current"] != release,
        "no run has shown it to work with this unit and agent.env": found["proven"] != release,
        "the last receipt does not say that it was installed": last.get("verdict") != "done"
        or last.get("release_after") != release,
        "a change of the configuration was shown to work and never told": found["untold"] is not None,
    }
    return [reason for reason, holds in reasons.items() if holds]


def untold(found: Json) -> str | None:
    """The run that changed the configuration, saw it work and died before it could say so; None without one.

    Nothing of the files tells: the same configuration again changes nothing. A receipt of that run, or one
    that was typed on the host and names it, has told it; so has any proof since.
    """
    journal = found["upgrade"] or {}
    if (journal.get("operation"), journal.get("outcome")) != ("configure", "configured"):
        return None
    run: str | None = journal["run_id"]
    receipt = found["receipts"]["newest"].get("configure") or {}
    typed = str(receipt.get("seen", {}).get("run")).endswith(f"in the journal: {run}")
    told = typed or run in (found["record"]["proof"].get("switch"), receipt.get("run_id"))
    return None if told else run


def start_plan(found: Json, request: Json) -> Json:
    """What the unit needs to run the target release: {up, restart, reload, enable, pid}.

    Decided from what runs, not from what a run did, so that a run that was cut short is completed by the
    next. Times are compared only until it was shown to work with these files: a clock that was set back would
    ask for restart after restart.
    """
    release, now = request.get("release") or found["current"], found["service"] or {}
    written = max(found["unit"]["modified_at"] or 0, env_at(found, request) or 0)
    older = found["proven"] != release and (now.get("started_at") or 0) < written
    return {
        "up": (now.get("active_state"), now.get("sub_state")) == ("active", "running"),
        "restart": now.get("release") != release or older,
        "reload": bool(now.get("reload_needed")),
        "enable": not now.get("enabled"),
        "pid": int(now.get("main_pid") or 0),
    }


def removal_plan(found: Json, request: Json) -> Json:
    """What an uninstall finds to do: bools, the `releases`, and in `needed` whether there is anything."""
    root, now = request["root"], found["service"] or {}
    plan: Json = {
        "unit": found["unit"]["sha256"] is not None,
        "running": now.get("active_state", "inactive") not in STOPPED,
        "enabled": bool(now.get("enabled")),
        # Without a manager nobody can be asked to disable it, and the link would dangle.
        "wanted": found["unit"]["is_wanted"] and not found["manager"],
        "delete": bool(request.get("delete_state")) and found["paths"][root] is not None,
        "lingering": found["lingering_ours"] and not found["other_instances"],
        "releases": [release["id"] for release in found["releases"]],
        "job_files": [
            path for job in found["jobs"].values() for path, digest in job["files"].items() if digest
        ],
        "job_timers": [
            f"{request['instance']}-{job}.timer"
            for job, facts in found["jobs"].items()
            if facts["enabled"] or facts["active"]
        ],
    }
    plan["needed"] = (
        any(plan[name] for name in ("unit", "running", "delete", "job_files", "job_timers"))
        or any(found[name] is not None for name in ("current", "helper_sha256", "registered"))
        or found["paths"][f"{root}/releases"] is not None
    )
    return plan


def pid1_ticks() -> int | None:
    text = read_text("/proc/1/stat")
    return int(text.rpartition(")")[2].split()[19]) if text else None


def prunable(found: Json, request: Json) -> list[str]:
    """Release folders that may go: half-made, or sealed beyond the newest N and nothing refers to it."""
    target, keep = request.get("release") or "", int(request.get("keep") or 0)
    service, journal = found["service"] or {}, found["upgrade"] or {}
    unfinished = journal if journal and journal["outcome"] is None else {}
    held = {
        target,
        found["current"],
        found["previous_good"],
        unfinished.get("from"),
        unfinished.get("to"),
        found["unit"]["release"],
        service.get("release"),
        *(job["release"] for job in found["jobs"].values()),
    }
    sealed = [release["id"] for release in found["releases"] if release["sealed"]]
    kept = held | set(sealed[-keep:] if keep else sealed)
    # The target counts among the N even before it is sealed.
    if keep and target and target not in sealed:
        kept = held | set(sealed[1 - keep :] if keep > 1 else [])
    old = [release["id"] for release in found["releases"] if release["id"] not in kept]
    return old + leftovers_below(request["root"])


# --- the checks -------------------------------------------------------------------------------------------


class Checks:
    """Collects outcomes; the worst decides."""

    def __init__(self) -> None:
        self.rows: list[Json] = []

    def add(self, name: str, outcome: str, observed: str, remedy: str = "") -> None:
        self.rows.append({"name": name, "outcome": outcome, "observed": observed, "remedy": remedy})

    def when(self, name: str, bad: bool, observed: str, remedy: str) -> None:
        self.add(name, "refuse" if bad else "pass", observed, remedy if bad else "")

    def outcome(self) -> str:
        outcomes = {row["outcome"] for row in self.rows}
        return next((level for level in ("refuse", "attention") if level in outcomes), "pass")


def check_inputs(checks: Checks, request: Json) -> bool:
    """Well-formedness of every name and path, by the variable it came from; False stops all other checks."""
    for variable, (rule, value) in sorted(request.get("inputs", {}).items()):
        broken = input_fault(rule, value)
        if broken:
            checks.add("input", "refuse", f"{variable} is {value!r}", f"set {variable} to {broken}")
    if not checks.rows:
        checks.add("input", "pass", "every name and path is well-formed")
    return checks.outcome() == "pass"


def input_fault(rule: str, value: Any) -> str | None:
    if rule == "path":
        good = isinstance(value, str) and PATH_RULE.match(value) and ".." not in value.split("/")
        normal = bool(good) and os.path.normpath(value) == value and not value.startswith("//")
        return (
            None if normal else "an absolute path of the characters A-Z a-z 0-9 _ . / - without '..' or '//'"
        )
    if rule == "path or nothing":
        return None if value == "" else input_fault("path", value)
    pattern, words = RULES[rule]
    return None if isinstance(value, str) and pattern.match(value) else words


def check_system(checks: Checks, request: Json) -> None:
    linux = sys.platform.startswith("linux")
    first = (read_text("/proc/1/comm") or "?").strip()
    booted = os.path.isdir("/run/systemd/system")
    checks.when(
        "system",
        not (linux and first == "systemd" and booted),
        f"{sys.platform}, PID 1 is {first}",
        "use a Linux host whose PID 1 is systemd",
    )
    code, out, _ = run(["systemctl", "is-active", "systemd-logind.service"])
    template = run(["systemctl", "cat", "user@.service"])[0] == 0
    checks.when(
        "manager",
        code != 0 or not template,
        f"systemd-logind is {out.strip() or 'absent'}, user@.service is {'there' if template else 'absent'}",
        "install libpam-systemd and dbus-user-session (a user manager needs logind)",
    )
    check_manager_stop(checks, request)
    version = systemd_version(run(["systemctl", "--version"])[1])
    analyze = shutil.which("systemd-analyze", path="/usr/bin:/bin")
    checks.when(
        "systemd",
        version < EARLIEST_SYSTEMD or analyze is None,
        f"systemd {version or '?'}, systemd-analyze is {analyze or 'absent'}",
        f"use a host with systemd {EARLIEST_SYSTEMD} or later and its systemd-analyze, which checks the unit",
    )


def systemd_version(text: str) -> int:
    """The number that `systemctl --version` begins with, or 0."""
    match = re.match(r"systemd (\d+)", text)
    return int(match[1]) if match else 0


def check_manager_stop(checks: Checks, request: Json) -> None:
    user = account(request["user"])
    uid, ours = (user["uid"] if user else 65_533), float(request["stop_seconds"])
    text = properties(["systemctl", "show", f"user@{uid}.service", "--property=TimeoutStopUSec"]).get(
        "TimeoutStopUSec", ""
    )
    seconds = span_seconds(text)
    checks.when(
        "manager_stop",
        seconds is None or seconds <= ours,
        f"user@{uid}.service stops after {text or 'an unknown time'}; the unit needs {ours:.0f} s",
        f"raise TimeoutStopSec of user@.service above {ours:.0f} s (systemctl edit user@.service)",
    )


def span_seconds(text: str) -> float | None:
    """Seconds of a systemd time span such as `1min 30s`; None if it is not one."""
    if text == "infinity":
        return float("inf")
    units = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
    parts = re.findall(r"(\d+(?:\.\d+)?)(us|ms|s|min|h|d|w)\b", text)
    return sum(float(number) * units[unit] for number, unit in parts) if parts else None


def interpreters(request: Json) -> Iterator[str]:
    """Candidate interpreters: the named one alone, or the distribution's, then the supported versions."""
    if request.get("python"):
        yield request["python"]
        return
    yield "/usr/bin/python3"
    folders = ["/usr/local/bin", "/usr/bin", *sorted(map(str, Path("/opt").glob("*/bin")))]
    for version in sorted(
        request["pythons"], key=lambda text: [int(part) for part in text.split(".")], reverse=True
    ):
        yield from (f"{folder}/python{version}" for folder in folders)
    yield "/usr/local/bin/python3"


def interpreter_version(path: str) -> str | None:
    """`X.Y.Z` of a CPython with the modules that a venv and the agent need, or None."""
    probe = (
        "import platform,sqlite3,ssl,venv,sys;"
        "print(platform.python_version() if sys.implementation.name == 'cpython' else '')"
    )
    code, out, _ = run([path, "-I", "-c", probe])
    return out.strip() or None if code == 0 else None


def open_to_others(path: str) -> bool:
    """Whether an unprivileged account can reach and run a file: every folder above it is searchable."""
    real = Path(os.path.realpath(path))
    return all(os.stat(step).st_mode & stat.S_IXOTH for step in [real, *real.parents])


def steps_to(path: str) -> Iterator[str]:
    """Every name that is looked up to reach a file: folders, links, and what the links lead through."""
    here, names, links = "/", path.split("/"), 0
    yield here
    while names:
        name = names.pop(0)
        here = os.path.dirname(here) if name == ".." else os.path.join(here, "" if name == "." else name)
        here = here.rstrip("/") or "/"
        if name in {"", ".", ".."}:
            continue
        yield here
        if os.path.islink(here) and links < 40:
            target, links = os.readlink(here), links + 1
            names = target.split("/") + names
            here = "/" if target.startswith("/") else os.path.dirname(here)


def changeable_by_others(path: str) -> str | None:
    """The first step on the way to a file that somebody besides root could replace, in words, or None."""
    for step in steps_to(path):
        found = os.lstat(step)
        writable = not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o022
        if found.st_uid != 0 or writable:
            mode = f"{stat.S_IMODE(found.st_mode):04o}"
            return f"{step} belongs to {owner_name(found.st_uid)}:{group_name(found.st_gid)} {mode}"
    return None


def find_python(checks: Checks, request: Json) -> Json | None:
    """The interpreter to build with. Root runs it, here already: so only one that nobody else can change."""
    wanted, seen = list(request["pythons"]), []
    for path in filter(os.path.isfile, interpreters(request)):
        others = changeable_by_others(path)
        if others:
            seen.append(f"{path}, not run: {others}")
            continue
        version = interpreter_version(path)
        if version is None:
            continue
        seen.append(f"{path} {version}")
        if ".".join(version.split(".")[:2]) in wanted and open_to_others(path):
            checks.add("python", "pass", f"{path} {version}")
            return {"path": path, "version": version}
    needs = " or ".join(sorted(wanted))
    checks.add(
        "python",
        "refuse",
        f"found {', '.join(dict.fromkeys(seen)) or 'no usable Python'}",
        f"this release needs CPython {needs} with venv, sqlite3 and ssl, runnable by every account, on "
        f"a path that only root can change: install one (Debian 13 ships 3.13) or name it in release_python",
    )
    return None


def check_machine(checks: Checks, request: Json, found: Json) -> None:
    machine = platform.machine()
    checks.when(
        "architecture",
        machine not in request["platforms"],
        machine,
        f"this release was built for {', '.join(request['platforms'])}",
    )
    there = any(release["id"] == request["release"] and release["sealed"] for release in found["releases"])
    base = nearest_existing(request["root"])
    room = os.statvfs(base)
    free = room.f_bavail * room.f_frsize // 1_000_000
    needed = 20 if there else int(request["free_mb"])
    few = bool(room.f_files) and room.f_favail < FEWEST_INODES and not there
    checks.when(
        "space",
        free < needed or few,
        f"{free} MB and {room.f_favail} inodes free under {base}",
        f"free at least {needed} MB and {FEWEST_INODES} inodes there",
    )
    skew = time.time() - float(request["now"])
    if time.time() < EARLIEST_CLOCK or abs(skew) > SKEW_REFUSE:
        checks.add(
            "clock",
            "refuse",
            f"the host's clock differs by {skew:+.0f} s",
            "set the host's clock (timedatectl)",
        )
    else:
        late = abs(skew) > SKEW_ATTENTION
        checks.add(
            "clock",
            "attention" if late else "pass",
            f"the host's clock differs by {skew:+.0f} s",
            "set the host's clock: schedules follow it" if late else "",
        )


def check_root(checks: Checks, request: Json) -> None:
    root = request["root"]
    fault = root_fault(root)
    checks.when(
        "root",
        fault is not None,
        fault or f"{root} can be a root folder",
        "give instance_root a folder of its own below one that only root can write, such as /srv/NAME",
    )
    base = os.path.realpath(nearest_existing(root))
    inside = os.path.normpath(os.path.join(base, os.path.relpath(root, nearest_existing(root))))
    point, kind, source = mount_of(inside, request["mountinfo"])
    remote = kind in REMOTE_FILE_SYSTEMS or kind == "fuseblk" or kind.split(".")[0] == "fuse"
    volatile = kind in VOLATILE_FILE_SYSTEMS
    why = "locks and syncs of a database are not safe there" if remote else "it is gone after a reboot"
    checks.when(
        "filesystem",
        remote or volatile,
        f"{root} is on {kind} ({source} at {point})",
        f"put instance_root on a local disk: {why}",
    )


def root_fault(root: str) -> str | None:
    if root.count("/") < 2:
        return f"{root} is a top-level folder"
    if any(root == folder or root.startswith(folder + "/") for folder in SYSTEM_FOLDERS):
        return f"{root} is below a folder of the system"
    base = nearest_existing(root)
    if os.path.realpath(base) != base:
        return f"{base} goes through a symbolic link to {os.path.realpath(base)}"
    if not os.path.isdir(base):
        return f"{base} is not a folder"
    for step in [Path(root), *Path(root).parents]:
        found = describe(str(step))
        if found and str(step) != root and (found["owner"] != "root" or int(found["mode"], 8) & 0o022):
            return f"{step} is writable by others than root ({found['owner']} {found['mode']})"
    return None


def check_ownership(checks: Checks, request: Json, found: Json) -> None:
    """Whose root, name, helper and home these are."""
    instance, user, root = request["instance"], request["user"], request["root"]
    ours = {"instance": instance, "user": user, "root": root}
    identity = found["identity"]
    others = identity if identity is None else {key: identity.get(key) for key in ours}
    claimed = found["registered"] or ours
    # A run that died while it made or removed the root leaves it registered as ours.
    unmarked = identity is None and found["registered"] is None
    strange = unmarked and os.path.isdir(root) and bool(os.listdir(root))
    if others not in (None, ours):
        observed, bad = f"{root}/instance.json says {json.dumps(others, sort_keys=True)}", True
    elif strange:
        observed, bad = f"{root} holds {sorted(os.listdir(root))[:5]} and no instance.json", True
    elif {key: claimed.get(key) for key in ours} != ours:
        observed, bad = (
            f"{instance} is already installed for {claimed.get('user')} at {claimed.get('root')}",
            True,
        )
    else:
        nested = nested_root(request)
        observed, bad = nested or f"{root} is {'this instance' if identity else 'free'}", nested is not None
    checks.when(
        "identity", bad, observed, "choose another instance_root or instance_name, or correct instance_user"
    )
    current = found["paths"][f"{root}/current"]
    folder = current is not None and current["kind"] != "link"
    checks.when(
        "current",
        folder,
        f"{root}/current is {'a ' + current['kind'] if current else 'absent'}",
        "move it away: current is a link that an install replaces, never a folder it deletes",
    )
    check_helper(checks, request)
    check_home(checks, request, found)


def check_home(checks: Checks, request: Json, found: Json) -> None:
    """An instance whose account has no readable home can not work, but it can be taken off the host."""
    user, account_found = request["user"], found["user"]
    bad = "attention" if request["purpose"] == "uninstall" else "refuse"
    if account_found and (account_found["uid"] == 0 or not os.path.isdir(account_found["home"])):
        checks.add(
            "home",
            bad,
            f"{user} has uid {account_found['uid']} and home {account_found['home']}",
            "instance_user must be an ordinary account with an existing home",
        )
        return
    home = account_found["home"] if account_found else f"/home/{user}"
    sign = encrypted_sign(user, home, request["mountinfo"])
    checks.add(
        "home",
        bad if sign else "pass",
        sign or f"{home} is readable without a login",
        "use an account whose home is not encrypted: at boot its user unit could not be read" if sign else "",
    )


def nested_root(request: Json) -> str | None:
    root, instance = request["root"], request["instance"]
    for path in sorted(Path(registry(request), "instances").glob("*.json")):
        other = str((read_json(path) or {}).get("root", ""))
        if path.stem != instance and other and (root + "/").startswith(other + "/"):
            return f"{root} lies in {other}, the root of {path.stem}"
        if path.stem != instance and other and (other + "/").startswith(root + "/"):
            return f"{other}, the root of {path.stem}, lies in {root}"
    return None


def helper_marker(request: Json) -> str:
    return f"# Standfast operator command: {request['instance']} {request['user']} {request['root']}"


def check_helper(checks: Checks, request: Json) -> None:
    instance = request["instance"]
    ours = f"{HELPER_FOLDER}/{instance}"
    there = shutil.which(instance, path=f"{HELPER_FOLDER}:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin")
    foreign = there or (ours if os.path.lexists(ours) else None)
    if foreign == ours and helper_marker(request) in (read_text(ours) or "").splitlines():
        foreign = None
    checks.when(
        "helper",
        foreign is not None,
        foreign or f"{ours} is {'ours' if there else 'free'}",
        "choose an instance_name that is not the name of a command on this host",
    )


def check_environment(checks: Checks, request: Json, found: Json) -> None:
    path = f"{request['root']}/state/agent.env"
    there = found["paths"][path]
    if there is None:
        checks.add("environment", "pass", f"{path} is absent")
        return
    good = there["kind"] == "file" and there["mode"] == "0600" and there["owner"] == request["user"]
    checks.when(
        "environment",
        not good,
        f"{path} is a {there['kind']}, {there['owner']}:{there['group']} {there['mode']}",
        f"make it a file of {request['user']} with mode 0600, after asking who read it meanwhile",
    )


def check_store(checks: Checks, request: Json, found: Json, python: Json | None) -> None:
    """A store that the release would refuse, before the release is there to be asked."""
    path, understood = f"{request['root']}/state/agent.sqlite", request.get("schema") or {}
    there = any(entry["id"] == request["release"] and entry["sealed"] for entry in found["releases"])
    if there or not understood or found["user"] is None or found["paths"][path] is None:
        return
    reader = [python["path"] if python else sys.executable, "-I", "-c", STORE_READER, path]
    code, out, err = run(reader, found["user"])
    if code != 0:
        why = (err.strip().splitlines() or [f"exit {code}"])[-1]
        checks.add(
            "store", "refuse", f"{path} cannot be read: {why}", "see `standfast health`, or restore a backup"
        )
        return
    newer = [
        f"{name} {version} (this release understands {understood.get(name, 'none')})"
        for name, version in sorted(json.loads(out).items())
        if version > understood.get(name, 0)
    ]
    checks.when(
        "store",
        bool(newer),
        f"the store was written by a newer release: {', '.join(newer)}" if newer else f"{path} is not newer",
        "install the release that wrote it, or a later one; the store was left alone",
    )


def check_floor(checks: Checks, request: Json, found: Json) -> None:
    """No release is put over a state that one with a higher rollback floor has written.

    An id begins with its release's version. Where there is no state yet, there is nothing to guard.
    """
    floor, version = found["record"]["floor"], request["release"].partition("-")[0]
    if floor is None or found["paths"][f"{request['root']}/state/agent.sqlite"] is None:
        return
    known, wanted = version_key(version), version_key(floor.get("version"))
    checks.when(
        "floor",
        known is None or wanted is None or known < wanted,
        f"the rollback floor is {floor.get('version')}, set by {floor.get('release')}; this is {version}",
        "choose a release at or above the floor: a repair stands between",
    )


def check_unit(checks: Checks, request: Json, found: Json) -> None:
    """A unit is ours if root's record has its text, or if the sealed release that it names would write it.

    The record makes an instance whose release was moved away installable again.
    """
    path, user, root = found["unit"]["path"], found["user"], request["root"]
    remedy = f"no install put it there: keep your copy of it elsewhere, then remove it (mv {path} /root/)"
    if path is None or not os.path.lexists(path):
        checks.add("unit", "pass", f"{path or 'the unit'} is absent")
        return
    if found["unit"]["sha256"] in found["record"]["units"]:
        checks.add("unit", "pass", f"{path} is what was put there")
        return
    release = found["unit"]["release"]
    sealed = {entry["id"] for entry in found["releases"] if entry["sealed"]}
    journal = found["upgrade"] or {}
    cut_short = release is not None and journal.get("to") == release and journal["outcome"] is None
    if cut_short and release not in sealed:
        # Its unit was in place before root's record had it. It goes on once its release is there again.
        checks.add(
            "unit",
            "attention" if request["purpose"] in SWITCHES else "refuse",
            f"{path} is of {release}, which is gone; the switch to it was cut short at {journal['step']}",
            "upgrade to it again, or give it up: runbooks/upgrade-stopped-half-way.md",
        )
        return
    if release not in sealed:
        line = next(
            (line for line in (read_text(path) or "").splitlines() if line.startswith("ExecStart=")), ""
        )
        checks.add(
            "unit",
            "refuse",
            f"{path} is not known and names no finished release of {root}: {line or 'it has no ExecStart'}",
            remedy,
        )
        return
    python = f"{root}/releases/{release}/venv/bin/python"
    code, out, err = run(
        [
            python,
            "-I",
            "-B",
            "-m",
            "standfast",
            "--state",
            f"{root}/state",
            "--json",
            "unit",
            "--instance",
            request["instance"],
            "--compare",
            path,
        ],
        user,
    )
    if code == 0:
        checks.add("unit", "pass", f"{path} is what {release} writes")
        return
    answer: Json = {}
    with contextlib.suppress(ValueError):
        answer = json.loads(out).get("refused", {})
    observed = answer.get("observed") or err.strip() or f"unit --compare exits {code}"
    lines = " | ".join(observed) if isinstance(observed, list) else observed
    # Without its unit an instance cannot be upgraded either: nobody is told to remove an edited one.
    back = f"put back what {release} writes (- is found there, + belongs there); keep an edit as a drop-in"
    checks.add("unit", "refuse", f"{path}: {lines}", back)


def check_jobs(checks: Checks, request: Json, found: Json) -> None:
    """The units of the scheduled jobs are ours if root's record has their text."""
    strange = [
        path
        for job in found["jobs"].values()
        for path, digest in job["files"].items()
        if os.path.lexists(path) and digest not in found["record"]["jobs"].get(os.path.basename(path), [])
    ]
    if strange:
        checks.add(
            "jobs",
            # These write such units, or take them away.
            "refuse" if request["purpose"] in DEPLOYMENTS | {"backup"} else "attention",
            f"no run put this text there: {', '.join(strange)}",
            f"keep your copy elsewhere, then remove it (mv {strange[0]} /root/)",
        )


def check_installed(checks: Checks, request: Json, found: Json) -> None:
    """There is something to operate on: a finished current release of an account that is there."""
    sealed = {release["id"] for release in found["releases"] if release["sealed"]}
    checks.when(
        "installed",
        found["user"] is None or found["current"] not in sealed or not found["manager"],
        f"{request['instance']}: current release {found['current'] or 'none'}",
        "install it first: playbooks/install.yml",
    )


def check_upgrade(checks: Checks, request: Json, found: Json) -> None:
    """A switch of the code that was cut short comes to its end first; one that ended stopped is told."""
    journal, page = found["upgrade"] or {}, "runbooks/upgrade-stopped-half-way.md"
    way = f"{journal.get('from')} -> {journal.get('to')}"
    firsts = {"install", "restore", "recover"}
    if journal and not all(journal[name] for name in ("step", "from", "to")):
        # Torn, or altered: no run can go on from it, so none is told to.
        checks.add(
            "upgrade",
            "refuse" if request["purpose"] in SWITCHES | firsts else "attention",
            f"{request['root']}/state/upgrade.json does not say how the last switch stands",
            f"{page}; it may be moved aside once the service works",
        )
    elif journal and journal["outcome"] is None and request["purpose"] not in SWITCHES:
        checks.add(
            "upgrade",
            "refuse" if request["purpose"] in firsts else "attention",
            f"{way} was cut short at the step {journal['step']}",
            f"run the playbook that began it again: it goes on or goes back; {page}",
        )
    elif journal.get("outcome") == "stopped" and (found["service"] or {}).get("active_state") in STOPPED:
        checks.add(
            "upgrade", "attention", f"{way} ended with the service stopped, and it stays stopped", page
        )
    elif found["untold"] is not None:
        checks.add(
            "upgrade",
            "attention",
            f"run {found['untold']} changed the configuration, saw it work and died before it said so",
            "the next run of playbooks/configure.yml with the same configuration proves and tells it",
        )


def check_lock(checks: Checks, request: Json) -> None:
    held = DeployLock(request).held_by_other()
    checks.when(
        "lock",
        held is not None,
        held or "no deployment is running here",
        "wait for that run to end; its lock can be taken over once it has expired",
    )


def preflight(request: Json) -> tuple[Json, int]:
    checks = Checks()
    if not check_inputs(checks, request):
        return {"outcome": "refuse", "checks": checks.rows, "survey": None, "python": None}, EXIT_REFUSED
    found = survey(request)
    check_system(checks, request)
    python = None
    if request["purpose"] in STAGINGS:
        python = find_python(checks, request)
        check_machine(checks, request, found)
        check_root(checks, request)
        check_store(checks, request, found, python)
        check_floor(checks, request, found)
    check_ownership(checks, request, found)
    if request["purpose"] != "uninstall":
        check_environment(checks, request, found)
    check_unit(checks, request, found)
    check_jobs(checks, request, found)
    if request["purpose"] in OPERATIONS:
        check_installed(checks, request, found)
    check_upgrade(checks, request, found)
    check_lock(checks, request)
    outcome = checks.outcome()
    code = {"pass": 0, "attention": EXIT_ATTENTION, "refuse": EXIT_REFUSED}[outcome]
    return {"outcome": outcome, "checks": checks.rows, "survey": found, "python": python}, code


# --- status ------------------------------------------------------------------------------------------------


def ask_health(request: Json, found: Json) -> tuple[int, Json, str]:
    """The installed release's answer: (exit, its JSON or {}, its words); exit -1 with none to ask."""
    python = f"{request['root']}/current/venv/bin/python"
    if found["current"] is None or found["user"] is None:
        return -1, {}, ""
    words = [python, "-I", "-m", "standfast", "--state", f"{request['root']}/state", "--json", "health"]
    code, out, err = run(words, found["user"], HEALTH_SECONDS)
    with contextlib.suppress(ValueError):
        answer = json.loads(out)
        if isinstance(answer, dict):
            return code, answer, err.strip()
    return code, {}, err.strip()


def hours(seconds: Any) -> str:
    return f"{float(seconds) / 3600:.1f} h old" if isinstance(seconds, (int, float)) else "of unknown age"


def told_backup(health: Json) -> list[str]:
    """One line for the last backup and one for the last rehearsal, if the release speaks of them."""
    lines = []
    if "last_backup" in health:
        last = health["last_backup"] or {}
        how = {True: ", verified", False: ", NOT good"}.get(last.get("verified"), "")
        told = f"{last.get('path')} of {last.get('made_at')}, {hours(last.get('age_seconds'))}{how}"
        lines.append(f"backup    {told if last else 'none'}")
    if "last_rehearsal" in health:
        last = health["last_rehearsal"] or {}
        told = (
            f"{'good' if last.get('ok') else 'FAILED'}, {hours(last.get('age_seconds'))}: {last.get('path')}"
        )
        lines.append(f"rehearsal {told if last else 'none'}")
    return lines


def status_report(request: Json, found: Json, code: int, health: Json) -> list[str]:
    now, last = found["service"] or {}, found["receipts"]["last"]
    at_boot = "starts at boot" if now.get("enabled") else "does not start at boot"
    receipt = (
        " ".join(str(last[key]) for key in ("sequence", "operation", "verdict", "finished_at"))
        if last
        else "none"
    )
    judged = {0: "nothing needs attention", 4: "attention"}.get(code, "not known")
    return [
        f"instance  {request['instance']}, user {request['user']}, root {request['root']}",
        (
            f"release   current {found['current'] or '-'}, unit names {found['unit']['release'] or '-'}, "
            f"process runs {now.get('release') or '-'}"
        ),
        (
            f"unit      {now.get('active_state', 'absent')} ({now.get('sub_state', '-')}), "
            f"pid {now.get('main_pid', '-')}, restarts {now.get('n_restarts', '-')}, {at_boot}"
        ),
        f"health    {judged}{', PAUSED: ' + str(health.get('reason')) if health.get('paused') else ''}",
        *told_backup(health),
        f"deployed  {receipt}",
        f"receipts  {found['receipts']['pending']} pending",
    ]


def status_attention(request: Json, found: Json, asked: tuple[int, Json, str]) -> list[str]:
    """One line for each thing that asks for a person, besides the checks."""
    now, (code, health, words) = found["service"] or {}, asked
    lines = []
    if found["current"] is None:
        lines.append("release: nothing is installed. To do: playbooks/install.yml")
    elif now.get("active_state") != "active":
        lines.append("unit: it is not active. To do: runbooks/service-down.md")
    elif {now.get("release"), found["unit"]["release"]} != {found["current"]}:
        lines.append("release: current, unit and process are not one release. To do: playbooks/install.yml")
    rules = health.get("attention") or []
    lines += [
        f"health: {rule.get('rule')}: {rule.get('observed')}. To do: {rule.get('remedy')}" for rule in rules
    ]
    if code not in (-1, 0) and not rules:
        lines.append(f"health: {words or f'exit {code}'}. To do: {request['instance']} health")
    return lines


def status_row(request: Json, found: Json, health: Json) -> Json:
    """What one line of a table over many hosts says; null is not known. Ages are seconds."""
    now, versions = found["service"] or {}, health.get("schema_versions")
    proofs = [
        entry
        for entry in found["record"]["history"]
        if entry.get("release") == found["current"] and entry.get("verdict") == "good"
    ]
    waiting = [health.get(name) for name in ("oldest_ready_seconds", "oldest_running_seconds")]
    understood = health.get("understood_versions") or {}
    return {
        "instance": request["instance"],
        "release": found["current"],
        "running": now.get("release"),
        "active_state": now.get("active_state"),
        "schema": versions,
        "schema_due": sum(
            max(0, version - (versions or {}).get(name, 0)) for name, version in understood.items()
        ),
        "paused": health.get("paused"),
        "oldest_work": max((age for age in waiting if age is not None), default=None),
        "uncertain_orders": health.get("uncertain_orders"),
        "uncertain_reports": health.get("uncertain_reports"),
        "backup_age": (health.get("last_backup") or {}).get("age_seconds"),
        "rehearsal_age": (health.get("last_rehearsal") or {}).get("age_seconds"),
        "canary_age": age_of(proofs[-1].get("at")) if proofs else None,
        "restarts": now.get("n_restarts"),
        "upgrade": found["upgrade"],
    }


def age_of(at: Any) -> float | None:
    """Seconds since an RFC 3339 time in UTC, or None if it is not one."""
    with contextlib.suppress(ValueError):
        return max(0.0, time.time() - calendar.timegm(time.strptime(str(at), "%Y-%m-%dT%H:%M:%SZ")))
    return None


def status(request: Json) -> tuple[Json, int]:
    answer, _ = preflight(request)
    lines = [
        f"{row['name']}: {row['observed']}. To do: {row['remedy']}"
        for row in answer["checks"]
        if row["outcome"] != "pass"
    ]
    found, row, report = answer["survey"], {"instance": request["instance"]}, []
    if found is not None:
        asked = ask_health(request, found)
        row = status_row(request, found, asked[1])
        report = status_report(request, found, asked[0], asked[1])
        lines += status_attention(request, found, asked)
    told = {"row": row, "report": report, "attention": [f"ATTENTION {line}" for line in lines]}
    return told, EXIT_ATTENTION if lines else 0


# --- the deploy lock --------------------------------------------------------------------------------------


class DeployLock:
    """{run_id, holder, since, seconds, expires}; `expires` on CLOCK_BOOTTIME, `since` epoch seconds."""

    def __init__(self, request: Json) -> None:
        self.folder = request.get("lock_folder") or "/run/standfast"
        self.path = f"{self.folder}/deploy.lock"
        self.run_id = str(request.get("run_id") or "")
        self.holder = str(request.get("holder") or "unknown")
        self.seconds = float(request.get("lock_seconds") or 300)
        self.switch = f"{request['root']}/state/upgrade.lock"

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Hold the guard file; bounded, because a stopped process may hold it."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.folder, 0o755)
            os.chmod(self.folder, 0o755)
        guard = os.open(
            f"{self.folder}/deploy.guard", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            if not any(self.locked(guard) for _ in range(100)):
                raise Refusal(
                    "lock_busy",
                    "the guard of the deploy lock did not become free within 10 s",
                    f"{self.folder}/deploy.guard",
                    "find the process that holds it (fuser) and end it",
                )
            yield
        finally:
            os.close(guard)

    @staticmethod
    def locked(guard: int) -> bool:
        """Try once; a tenth of a second later if it is taken."""
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.1)
            return False
        return True

    def read(self) -> Json | None:
        return read_json(self.path)

    @staticmethod
    def left(lock: Json) -> float:
        """Seconds until expiry; a lock of another boot (expiry beyond its own span) has expired."""
        left = float(lock.get("expires", 0)) - boottime()
        return 0.0 if left > float(lock.get("seconds", 0)) + 1 else left

    def held_by_other(self) -> str | None:
        lock = self.read()
        if lock is None or lock.get("run_id") == self.run_id or self.left(lock) <= 0:
            return None
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(float(lock.get("since", 0))))
        who = f"{lock.get('holder')} (run {lock.get('run_id')})"
        return f"held by {who} since {since}, expires in {self.left(lock):.0f} s"

    def write(self, since: float) -> Json:
        lock = {
            "format": 1,
            "run_id": self.run_id,
            "holder": self.holder,
            "since": since,
            "seconds": self.seconds,
            "expires": boottime() + self.seconds,
        }
        place_file(self.path, json.dumps(lock), 0o644)
        return lock

    def refuse_if_held(self) -> None:
        held = self.held_by_other()
        if held:
            raise Refusal(
                "lock_held",
                "another deployment holds this host",
                held,
                "wait for that run to end; its lock can be taken over once it has expired",
            )

    def acquire(self) -> Json:
        with self.guarded():
            self.refuse_if_held()
            before = self.read()
            took_over = before if before and before.get("run_id") != self.run_id else None
            return {"changed": True, "lock": self.write(time.time()), "took_over": took_over}

    def renew(self) -> Json:
        with self.guarded():
            self.refuse_if_held()
            lock = self.read()
            if lock is None or lock.get("run_id") != self.run_id:
                raise Refusal(
                    "lock_lost",
                    "this run no longer holds the deploy lock",
                    json.dumps(lock),
                    "another run took it over after it had expired: start again",
                )
            return {"changed": True, "lock": self.write(float(lock["since"]))}

    def release(self) -> Json:
        if not os.path.isdir(self.folder):
            return {"changed": False}
        with self.guarded():
            lock = self.read()
            ours = lock is not None and lock.get("run_id") == self.run_id
            # A run that lost its command (its connection was killed) ends before that command does: it then
            # stays until it expires, which is after the longest of them.
            free = ours and not is_locked(self.switch)
            if free:
                os.unlink(self.path)
            return {"changed": free}

    def show(self) -> Json:
        lock = self.read()
        return {"changed": False, "lock": lock, "held": lock is not None and self.left(lock) > 0}


def is_locked(path: str) -> bool:
    """Whether a living process holds a lock on a file, alone; it may be any file of the service user's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


# --- writing as somebody ----------------------------------------------------------------------------------


def place_file(path: str, text: str, mode: int, *, replace: bool = True) -> None:
    """Whole or not at all: an exclusive temporary file, private from its first byte, synced, then renamed."""
    # A dot name: what a killed run leaves is no receipt and no unit to anybody.
    folder_name, name = os.path.split(path)
    temporary = f"{folder_name}/.{name}.{os.getpid()}.new"
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        if replace:
            os.rename(temporary, path)
        else:
            os.link(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(folder)
    os.close(folder)


def become(name: str) -> Json:
    """Give up root for good, for the named account."""
    user = account(name)
    if user is None:
        raise Refusal("no_user", f"there is no account {name}", "", "create it or correct instance_user")
    if os.geteuid() == 0:
        os.initgroups(name, user["gid"])
        os.setgid(user["gid"])
        os.setuid(user["uid"])
    return user


def discard(request: Json) -> tuple[Json, int]:
    """A release folder without a seal goes, and this run's archive; not once they may be another run's."""
    DeployLock(request).renew()
    releases, gone = f"{request['root']}/releases", False
    folder, staged = f"{releases}/{request['release']}", f"{releases}/{request['staged']}"
    if os.path.isdir(folder) and not os.path.lexists(f"{folder}/installed.json"):
        shutil.rmtree(folder)
        gone = True
    with contextlib.suppress(FileNotFoundError):
        os.unlink(staged)
        gone = True
    return {"changed": gone}, 0


def place(request: Json) -> tuple[Json, int]:
    if request.get("unit"):
        # Before it is there: a run that dies in between must not leave a unit that nobody knows.
        record, digest = read_record(request), hashlib.sha256(request["text"].encode()).hexdigest()
        name = os.path.basename(request["path"])
        before = record["jobs"].get(name, []) if request["unit"] == "job" else record["units"]
        known = [*[one for one in before if one != digest][-1:], digest]
        record |= {"jobs": {**record["jobs"], name: known}} if request["unit"] == "job" else {"units": known}
        write_record(request, record)
    user = become(request["user"])
    path, text = request["path"], request["text"]
    allowed = (user["home"], f"{request['root']}/state", f"/run/user/{user['uid']}")
    if not path.startswith(tuple(f"{folder}/" for folder in allowed)):
        raise Refusal("outside", f"{path} is not below {allowed}", "", "this is a fault of the role")
    if text is None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            return {"changed": True}, 0
        return {"changed": False}, 0
    if read_text(path) == text and (describe(path) or {}).get("mode") == request["mode"]:
        return {"changed": False}, 0
    missing = [folder for folder in Path(path).parents if not folder.is_dir()]
    for folder in reversed(missing):
        os.mkdir(folder)
        os.chmod(folder, 0o755)
    place_file(path, text, int(request["mode"], 8))
    return {"changed": True}, 0


def outgoing(request: Json) -> str:
    return f"{registry(request)}/outgoing/{request['instance']}"


def stage(request: Json) -> tuple[Json, int]:
    """Copy one file to a folder of root's in which only the login can read it.

    It is opened as the service user, whose folder it lies in: a link there can not make root read another
    file. In blocks, whatever its size.
    """
    user, login = account(request["user"]), account(request["login"])
    if user is None or login is None:
        raise Refusal(
            "no_user", "an account is missing", f"{request['user']}, {request['login']}", "correct it"
        )
    folder = outgoing(request)
    for path in (registry(request), os.path.dirname(folder), folder):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o755)
            os.chmod(path, 0o755)
    target = f"{folder}/{os.path.basename(request['path'])}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        os.fchown(descriptor, login["uid"], login["gid"])
        drop = {"user": user["uid"], "group": user["gid"], "extra_groups": []} if os.geteuid() == 0 else {}
        done = subprocess.run(
            ["cat", "--", request["path"]],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=subprocess.PIPE,
            check=False,
            **drop,
        )
        if done.returncode != 0:
            os.unlink(target)
            why = done.stderr.decode("utf-8", "replace").strip()
            raise Refusal(
                "unreadable", f"{request['path']} can not be copied", why, "free space, or see its owner"
            )
        file.seek(0)
        digest, size = hashlib.sha256(), 0
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
            size += len(block)
    return {"changed": True, "path": target, "sha256": digest.hexdigest(), "bytes": size}, 0


def unstage(request: Json) -> tuple[Json, int]:
    folder = outgoing(request)
    there = os.path.isdir(folder)
    if there:
        shutil.rmtree(folder)
    return {"changed": there}, 0


def pending_receipt(request: Json) -> tuple[Json, int]:
    root, user = request["root"], account(request["user"])
    if user is None or not os.path.isfile(f"{root}/instance.json"):
        return {"changed": False, "reason": "there is no instance to keep it in yet"}, 0
    folder = f"{root}/receipts"
    if not os.path.lexists(folder):
        os.mkdir(folder, 0o700)
        os.chown(folder, user["uid"], user["gid"])
    become(request["user"])
    path = f"{folder}/pending-{request['run_id']}.json"
    with contextlib.suppress(FileExistsError):
        place_file(
            path, json.dumps(request["receipt"], sort_keys=True, indent=1) + "\n", 0o600, replace=False
        )
        return {"changed": True, "path": path}, 0
    return {"changed": False, "path": path}, 0


def service(request: Json) -> tuple[Json, int]:
    """The unit's facts, after waiting (bounded) until it is settled in the wanted state."""
    user = account(request["user"])
    if user is None:
        raise Refusal("no_user", f"there is no account {request['user']}", "", "install the instance first")
    deadline = time.monotonic() + float(request.get("wait") or 0)
    while True:
        facts = service_facts(request["instance"], user)
        state, up = facts["active_state"], request.get("until", "active") == "active"
        settled = (
            (state == "active" and facts["main_pid"] != request.get("not_pid")) if up else state != "active"
        )
        settled = (settled or state == "failed") and state not in {"activating", "deactivating", "reloading"}
        if (settled and not facts["job"]) or time.monotonic() >= deadline:
            text = read_text(unit_path(user["home"], request["instance"]))
            facts["text_sha256"] = hashlib.sha256(text.encode()).hexdigest() if text is not None else None
            return {"changed": False, "service": facts, "boot": pid1_boot()}, 0
        time.sleep(0.25)


def watch(request: Json) -> tuple[Json, int]:
    """Look again and again, until the time is over or the service is not what it was; then ask its health."""
    user, root = account(request["user"]), request["root"]
    if user is None:
        raise Refusal("no_user", f"there is no account {request['user']}", "", "install the instance first")
    first = service_facts(request["instance"], user)
    pid = int(request.get("pid") or first["main_pid"])
    deadline = time.monotonic() + float(request["seconds"])
    while True:
        now = service_facts(request["instance"], user)
        trouble, left = unsteady(first, now, pid), deadline - time.monotonic()
        if trouble or left <= 0:
            break
        time.sleep(min(WATCH_EVERY, left))
    found = {"user": user, "current": os.path.basename(os.path.realpath(f"{root}/current"))}
    trouble = trouble or unwell(ask_health(request, found))
    return {"changed": False, "trouble": trouble}, EXIT_ATTENTION if trouble else 0


def unsteady(first: Json, now: Json, pid: int) -> str | None:
    """In which way the unit is not as it was, or None."""
    if now["active_state"] != "active":
        return f"the service is {now['active_state']} ({now['sub_state']}, exit {now['exit_code']})"
    if now["main_pid"] != pid or now["n_restarts"] > first["n_restarts"]:
        restarts = now["n_restarts"]
        return (
            f"the service began again: process {now['main_pid']} in the place of {pid}, {restarts} restarts"
        )
    return None


def unwell(asked: tuple[int, Json, str]) -> str | None:
    """What health says of a service that does not do its work, or None; what waits for a person is none."""
    code, health, words = asked
    if code not in (0, EXIT_ATTENTION):
        return f"health: {words or f'exit {code}'}"
    rules = [rule for rule in health.get("attention") or [] if rule.get("rule") in UNWELL]
    return "; ".join(f"health: {rule['rule']}: {rule.get('observed')}" for rule in rules) or None


def pid1_boot() -> Json:
    return {"pid1_started_at": process_started_at(1), "pid1_start_ticks": pid1_ticks()}


# --- entry ------------------------------------------------------------------------------------------------


def commands() -> dict[str, Callable[[Json], tuple[Json, int]]]:
    """Every subcommand by its words; each takes the request and gives the answer and the exit code."""
    plain: dict[str, Callable[[Json], tuple[Json, int]]] = {
        "preflight": preflight,
        "status": status,
        "discard": discard,
        "place": place,
        "stage": stage,
        "unstage": unstage,
        "proof": prove,
        "condemn": condemn,
        "forget": forget,
        "pending-receipt": pending_receipt,
        "service": service,
        "watch": watch,
        "survey": lambda request: (survey(request), 0),
        "lock acquire": lambda request: ({**DeployLock(request).acquire(), "survey": survey(request)}, 0),
        "lock renew": lambda request: (DeployLock(request).renew(), 0),
        "lock release": lambda request: (DeployLock(request).release(), 0),
        "lock show": lambda request: (DeployLock(request).show(), 0),
    }
    return plain


def main(words: list[str], text: bytes) -> int:
    try:
        answer, code = commands()[" ".join(words)](json.loads(text))
    except Refusal as refusal:
        answer, code = refusal.answer, EXIT_REFUSED
        print(refusal.words, file=sys.stderr)
    except (KeyError, ValueError) as error:
        usage(f"{type(error).__name__}: {error}")
    except OSError as error:
        print(f"hostcheck: {error}", file=sys.stderr)
        return 1
    json.dump(answer, sys.stdout, sort_keys=True)
    print()
    return code


def usage(problem: str) -> NoReturn:
    print(f"hostcheck: {problem}\n{__doc__}", file=sys.stderr)
    raise SystemExit(EXIT_USAGE)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:], REQUEST))
