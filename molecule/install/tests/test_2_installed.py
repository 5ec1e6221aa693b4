"""What the install left on the host: account, files, release, unit, sandbox, receipt, finished work."""

import hashlib
import json
import re
import time

import pytest
from evidence import (
    body,
    canary,
    copies,
    finished,
    good,
    listing,
    now,
    properties,
    receipts,
    running,
    service,
    sessions,
)
from target import wait_until

STATE = "/srv/lucy/state"
UNIT = "/home/lucy/.config/systemd/user/lucy-agent.service"


@pytest.fixture(scope="module")
def release(installed):
    """The folder of the installed release."""
    return installed.run(["readlink", "-f", "/srv/lucy/current"]).stdout.strip()


def test_the_page_verifies_the_install(installed, page):
    page.run("Verify")


def test_the_account(installed):
    user = installed.testinfra.user("lucy")
    assert user.exists
    assert user.shell == "/usr/sbin/nologin"
    assert user.groups == ["lucy"]
    assert user.password in {"!", "*", "!*"}
    assert installed.testinfra.file("/home/lucy").is_directory
    assert installed.testinfra.file("/var/lib/systemd/linger/lucy").exists


@pytest.mark.parametrize(
    ("path", "kind", "owner", "mode"),
    [
        ("/srv/lucy", "directory", "root:lucy", 0o750),
        ("/srv/lucy/instance.json", "file", "root:lucy", 0o640),
        ("/srv/lucy/releases", "directory", "root:root", 0o755),
        ("/srv/lucy/backups", "directory", "lucy:lucy", 0o700),
        ("/srv/lucy/receipts", "directory", "lucy:lucy", 0o700),
        (STATE, "directory", "lucy:lucy", 0o700),
        (f"{STATE}/agent.env", "file", "lucy:lucy", 0o600),
        (f"{STATE}/agent.sqlite", "file", "lucy:lucy", 0o600),
        (f"{STATE}/agent.authority", "file", "lucy:lucy", 0o600),
        (f"{STATE}/shop.toml", "file", "lucy:lucy", 0o600),
        (f"{STATE}/outbox", "directory", "lucy:lucy", 0o700),
        (UNIT, "file", "lucy:lucy", 0o644),
        ("/usr/local/bin/lucy-agent", "file", "root:root", 0o755),
        ("/var/lib/standfast/instances/lucy-agent.json", "file", "root:root", 0o644),
    ],
)
def test_owner_and_mode(installed, path, kind, owner, mode):
    file = installed.testinfra.file(path)
    assert file.exists
    assert file.is_directory if kind == "directory" else file.is_file
    assert (f"{file.user}:{file.group}", file.mode) == (owner, mode)


def test_only_the_root_folder_holds_what_the_install_made(installed):
    """No archive, no remote temporary folder, no lock stays behind."""
    assert installed.run("ls -A /srv/lucy").stdout.split() == [
        "backups", "current", "instance.json", "receipts", "releases", "state",
    ]  # fmt: skip
    assert len(installed.run("ls -A /srv/lucy/releases").stdout.split()) == 1
    assert installed.run("ls -A /run/standfast").stdout.split() in ([], ["deploy.guard"])
    # Ansible's own folder for what it must copy is there, and empty.
    left = installed.run("find / -xdev -path /proc -prune -o -name '*ansible*' -print").stdout.split()
    assert left == ["/root/.ansible"]
    assert installed.run("find /root/.ansible -mindepth 1").stdout.split() == ["/root/.ansible/tmp"]


def test_the_service_cannot_write_its_release(installed, release):
    owners = installed.run(f"find {release} -printf '%u:%g %m\\n' | sort | uniq -c").stdout
    assert set(re.findall(r"\w+:\w+", owners)) == {"root:root"}
    assert installed.run(f"find {release} ! -type l -perm /022").stdout == ""
    assert installed.as_user("lucy", f"find {release} ! -type l -writable").stdout == ""
    assert installed.as_user("lucy", f"find {release} ! -readable").stdout == ""
    refused = installed.as_user("lucy", f"echo x >> {release}/venv/bin/standfast", check=False)
    assert refused.rc != 0
    assert "Permission denied" in refused.stderr


def test_every_file_of_the_release_is_what_its_seal_says(installed, release):
    """Counted anew with sha256sum, without the release's own code; then the release's own verdict."""
    seal = json.loads(installed.run(["cat", f"{release}/installed.json"]).stdout)
    counted = installed.run(f"cd {release}/venv && find . -type f -print0 | xargs -0 sha256sum", timeout=120)
    files = {path.removeprefix("./"): digest for digest, path in map(str.split, counted.stdout.splitlines())}
    sealed = {path.removeprefix("venv/"): said for path, said in seal["files"].items()}
    links = set(sealed) - set(files)
    assert len(files) > 500
    assert {path: sealed.get(path) for path in files} == files
    assert set(installed.run(f"cd {release}/venv && find . -type l").stdout.split()) == {
        f"./{p}" for p in links
    }
    assert seal["release_id"] == release.rpartition("/")[2]
    assert installed.cli("release", "verify", "--installed", release, timeout=120)["verified"] is True


def test_the_seal_can_tell_a_changed_file(installed, release):
    """The verdict above must be able to be no."""
    victim = f"{release}/venv/bin/standfast"
    installed.run(f"cp -p {victim} /root/kept && echo '# edited' >> {victim}")
    try:
        verdict = installed.cli("release", "verify", "--installed", release, rc=4, timeout=120)
        assert [(d["path"], d["problem"]) for d in verdict["differences"]] == [
            ("venv/bin/standfast", "changed")
        ]
    finally:
        installed.run(f"cp -p /root/kept {victim} && rm /root/kept")


def test_the_release_is_named_not_its_link(installed, release):
    text = installed.run(["cat", UNIT]).stdout
    assert f"ExecStart={release}/venv/bin/python -I -m standfast --state {STATE} serve\n" in text
    assert "/current" not in text
    assert (
        installed.run(["readlink", "/srv/lucy/current"]).stdout.strip()
        == f"releases/{release.rpartition('/')[2]}"
    )
    shebangs = installed.run(f"grep -rIl '^#!.*current' {release}/venv/bin", check=False)
    assert (shebangs.rc, shebangs.stdout) == (1, "")


def test_version(installed, release):
    said = installed.run(["lucy-agent", "--version"]).stdout.split()
    assert said == ["standfast", "0.1.0", f"({release.rpartition('/')[2]})"]


UNIT_FACTS = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "UnitFileState": "enabled",
    "NeedDaemonReload": "no",
    "Description": "Standfast agent, instance lucy-agent",
    "Type": "notify",
    "NotifyAccess": "main",
    "Restart": "on-failure",
    "RestartUSec": "10s",
    "RestartPreventExitStatus": "78",
    "StartLimitIntervalUSec": "0",
    "TimeoutStopUSec": "1min 30s",
    "WatchdogUSec": "2min",
    "KillMode": "mixed",
    "UMask": "0077",
    "NoNewPrivileges": "yes",
    "PrivateTmp": "yes",
    "ProtectSystem": "strict",
    "ReadWritePaths": STATE,
    "ProtectHome": "read-only",
    "EnvironmentFiles": f"{STATE}/agent.env (ignore_errors=no)",
    "WantedBy": "default.target",
    "FragmentPath": UNIT,
    "DropInPaths": "",
    "Result": "success",
    "NRestarts": "0",
}


def test_unit_facts(installed, release):
    shown = properties(installed, *UNIT_FACTS, "WorkingDirectory", "After", "Wants", "Requires", "ExecStart")
    assert {name: shown.get(name) for name in UNIT_FACTS} == UNIT_FACTS
    assert shown["WorkingDirectory"] == release
    assert f"argv[]={release}/venv/bin/python -I -m standfast --state {STATE} serve ;" in shown["ExecStart"]
    for relation in ("After", "Wants", "Requires"):
        assert "network" not in shown.get(relation, "")


def test_the_manager_stops_later_than_the_unit(installed):
    """user@ would otherwise kill the service in the middle of its own stop."""
    uid = installed.run(["id", "-u", "lucy"]).stdout.strip()
    shown = installed.run(
        ["systemctl", "show", f"user@{uid}.service", "-p", "TimeoutStopUSec", "--value"]
    ).stdout
    assert shown.strip() == "2min"


def test_the_process_is_confined(installed):
    """Read from /proc by the service user: even root of a container may not look into its namespaces."""
    pid = running(installed).main_pid
    read = f"cat /proc/{pid}/status; echo ==; cat /proc/{pid}/uid_map; echo ==; cat /proc/{pid}/mountinfo"
    status, uid_map, mountinfo = installed.as_user("lucy", read).stdout.split("==\n")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    uid = installed.run(["id", "-u", "lucy"]).stdout.strip()
    assert facts["Uid"].split() == [uid] * 4
    assert facts["Umask"] == "0077"
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"
    assert {facts[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {"0" * 16}
    # A user namespace of its own that maps the service user and nobody else.
    assert uid_map.split() == [uid, uid, "1"]
    mounts = {}
    for line in mountinfo.splitlines():
        fields = line.split()
        mounts[fields[4]] = (fields[3], set(fields[5].split(",")))  # a later mount hides an earlier one
    assert "ro" in mounts["/"][1]
    assert "rw" in mounts[STATE][1]
    assert mounts[STATE][0] == STATE
    writable = {path for path, (_, options) in mounts.items() if "rw" in options}
    assert {path for path in writable if path.startswith(("/srv", "/home", "/etc", "/usr"))} == {STATE}
    for path in ("/tmp", "/var/tmp"):
        assert re.search(r"systemd-private-.*-lucy-agent\.service-", mounts[path][0])
    assert "noexec" in mounts["/dev"][1]


# What a process tries, printed as {name: "allowed" or an errno's name}. It runs twice as the service user:
# without the unit's sandbox, where all of it is allowed (so the attempt itself is sound), and with it.
PROBE = r"""
import ctypes, errno, json, mmap, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
def create(path):
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    os.unlink(path)
def setuid_bit():
    with open("/tmp/probe-bit", "w") as file:
        os.unlink("/tmp/probe-bit")
        os.fchmod(file.fileno(), 0o4700)
def namespace():  # in a child: there is no way back from one
    child = os.fork()
    if child == 0:
        try:
            os.unshare(os.CLONE_NEWUSER)
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, "")
def root_is_mapped():
    if os.stat("/etc/passwd").st_uid != 0:
        raise OSError(errno.EPERM, "")
tries = {
    "write the home folder": lambda: create(os.path.expanduser("~/probe-file")),
    "write the runtime folder": lambda: create(f"/run/user/{os.getuid()}/probe-file"),
    "write the receipts": lambda: create("/srv/lucy/receipts/probe-file"),
    "map memory to write and execute": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC),
    "open a socket of another family": lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close(),
    "change its personality": lambda: call(libc.personality(0x20000)),
    "make a namespace": namespace,
    "set a setuid bit": setuid_bit,
    "trace a process": lambda: call(libc.ptrace(0, 0, 0, 0)),
    "change its priority": lambda: os.setpriority(os.PRIO_PROCESS, 0, 5),
    "see the host's /tmp": lambda: os.stat("/tmp/probe-seen"),
    "meet the host's root": root_is_mapped,
}
result = {"umask": os.umask(0)}
for name, attempt in tries.items():
    try:
        attempt()
        result[name] = "allowed"
    except OSError as error:
        result[name] = errno.errorcode[error.errno]
# What the service needs must go on working.
create("/srv/lucy/state/probe-file")
create("/tmp/probe-own")
socket.socket(socket.AF_INET).close()
socket.socket(socket.AF_UNIX).close()
print(json.dumps(result))
"""
NOT_SANDBOX = re.compile(r"^(Type|NotifyAccess|ExecStart|SyslogIdentifier|WatchdogSec|Restart\w*|KillMode)=")
REFUSALS = {
    "write the home folder": "EROFS",
    "write the runtime folder": "EROFS",
    "write the receipts": "EROFS",
    "map memory to write and execute": "EACCES",
    "open a socket of another family": "EAFNOSUPPORT",
    "change its personality": "EPERM",
    "make a namespace": "EPERM",
    "set a setuid bit": "EPERM",
    "trace a process": "EPERM",
    "change its priority": "EPERM",
    "see the host's /tmp": "ENOENT",
    "meet the host's root": "EPERM",
}


def test_the_sandbox_of_the_unit_holds(installed):
    """A process under the directives of the installed unit's text tries what a stolen agent would."""
    section = installed.run(["cat", UNIT]).stdout.split("[Service]\n")[1].split("\n[Install]")[0]
    directives = [line for line in section.splitlines() if "=" in line and not line.startswith("#")]
    sandbox = [line for line in directives if not NOT_SANDBOX.match(line)]
    assert len(sandbox) > 20
    base = ["systemd-run", "--user", "--wait", "--pipe", "--quiet", "--collect"]
    python = ["/usr/bin/python3", "-I", "-"]
    installed.run("touch /tmp/probe-seen")
    try:
        free = installed.as_user("lucy", [*base, *python], stdin=PROBE)
        held = installed.as_user(
            "lucy", [*base, *(f"--property={line}" for line in sandbox), *python], stdin=PROBE
        )
    finally:
        installed.run("rm -f /tmp/probe-seen")
    unconfined = json.loads(free.stdout)
    unconfined.pop("umask")
    confined = json.loads(held.stdout)
    assert unconfined == dict.fromkeys(REFUSALS, "allowed")
    assert confined.pop("umask") == 0o077
    assert confined == REFUSALS


def test_the_receipt_says_what_is_there(installed, controller, release):
    on_host = receipts(installed)
    assert len(on_host) == 1
    ((name, receipt),) = on_host.items()
    assert re.fullmatch(r"000001-install-[0-9a-f]{8}\.json", name)
    file = installed.testinfra.file(f"/srv/lucy/receipts/{name}")
    assert (file.user, file.mode) == ("lucy", 0o600)
    assert receipt["verdict"] == "done"
    assert receipt["stopped_at"] is None
    assert (receipt["host"], receipt["instance"]) == ("agent", "lucy-agent")
    assert (receipt["release_before"], receipt["release_after"]) == (None, release.rpartition("/")[2])
    state = running(installed)
    text = installed.run(["cat", UNIT]).stdout
    unit = receipt["unit"]
    assert (unit["main_pid"], unit["n_restarts"], unit["active_state"]) == (state.main_pid, 0, "active")
    assert unit["text_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert receipt["canary"]["run"]["pid"] == state.main_pid
    work = installed.cli("work", "show", receipt["canary"]["work"])["work"]
    assert (work["status"], work["run"]) == ("DONE", receipt["canary"]["run"]["id"])
    assert [phase["name"] for phase in receipt["phases"]] == [
        "preflight", "instance", "release", "state", "service", "canary",
    ]  # fmt: skip
    assert {check["outcome"] for check in receipt["checks"]} == {"pass"}
    assert str(receipt["boot"]["pid1_start_ticks"]) == installed.boot_marker()
    assert receipt["previous"] is None


def test_the_controller_has_a_copy_of_the_receipt(installed, controller):
    folder = controller.folder / "receipts" / "agent"
    ((_, receipt),) = receipts(installed).items()
    ((name, copy),) = copies(folder).items()
    assert copy == receipt
    assert name.startswith("lucy-agent-000001-install-")
    assert (folder / name).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_chain_of_receipts_is_whole(installed):
    verdict = installed.cli("receipt", "verify")
    assert (verdict["verified"], verdict["receipts"], verdict["pending"]) == (True, 1, [])


def test_low_stock_of_vanilla_is_reported_once_for_each_fall(installed):
    """The opening stock is below the point: one report. It recovers and falls again: one more."""
    pid = running(installed).main_pid
    runs = installed.cli("health")["service"]
    first = finished(installed, "low-stock:vanilla")
    assert len(first) == 1
    assert first[0]["run"] == runs["id"]
    assert "Vanilla: 2 on hand, 0 on order, reorder point 8; 6 needed" in body(installed, first[0]["id"])

    def passes() -> None:
        canary(installed, pid)  # the service has looked at the stock again when it is done
        canary(installed, pid)

    passes()
    assert len(finished(installed, "low-stock:vanilla")) == 1
    installed.cli("stock", "adjust", "vanilla", "6", "--reason", "delivery", "--event-id", "delivery-1")
    again = installed.cli(
        "stock", "adjust", "vanilla", "6", "--reason", "delivery", "--event-id", "delivery-1"
    )
    assert again["changed"] is False
    passes()
    assert len(finished(installed, "low-stock:vanilla")) == 1
    installed.cli("stock", "adjust", "vanilla", "-3", "--reason", "sold")
    second = wait_until(
        lambda: finished(installed, "low-stock:vanilla")[1:], 20, "a second fall of vanilla is reported"
    )
    assert len(second) == 1
    assert "Vanilla: 5 on hand, 0 on order, reorder point 8; 3 needed" in body(installed, second[0]["id"])


def test_the_scheduled_brief_is_finished_by_the_service(installed):
    brief = next(s for s in installed.cli("schedule", "list")["schedules"] if s["name"] == "morning-brief")
    assert (brief["cron"], brief["zone"], brief["prompt"]) == (
        "30 6 * * *",
        "UTC",
        "Write the morning brief.",
    )
    added = installed.cli("schedule", "add", "pulse", "--every", "3", "--prompt", brief["prompt"])
    assert added["changed"] is True
    work = wait_until(lambda: finished(installed, "schedule:pulse"), 30, "the scheduled brief is finished")[0]
    assert work["run"] == installed.cli("health")["service"]["id"]
    assert installed.cli("health")["service"]["pid"] == running(installed).main_pid
    text = body(installed, work["id"])
    stock = installed.cli("stock", "list")["products"]
    assert {product["sku"] for product in stock} == {"vanilla", "strawberry", "chocolate"}
    for product in stock:
        said = f"{product['sku'].capitalize()}: {product['on_hand']} on hand, {product['on_order']} on order"
        assert said in text


def test_the_status_page_changes_nothing(installed, runbook):
    before, service_before = unmoved(installed), running(installed)
    runbook("status", installed).run()
    assert service(installed) == service_before
    assert unmoved(installed) == before


def unmoved(host):
    """What a run that has nothing to do must leave as it is: all files but the store's and its outbox."""
    files = listing(
        host, "/srv", "/home", "/etc", "/usr/local", "/var/lib", "/root", "/tmp", without=[f"{STATE}/*"]
    )
    return files, host.run(f"sha256sum {STATE}/agent.env {STATE}/agent.authority {STATE}/shop.toml").stdout


def test_installing_again_changes_nothing(installed, controller):
    before, service_before = unmoved(installed), running(installed)
    again = controller.playbook("install", "--diff")
    good(again, changed=0)
    assert service(installed) == service_before
    assert unmoved(installed) == before
    assert len(receipts(installed)) == len(copies(controller.folder / "receipts/agent")) == 1


def test_a_dry_run_on_an_installed_host_finds_nothing_to_change(installed, controller):
    before, service_before = unmoved(installed), running(installed)
    dry = controller.playbook("install", check=True)
    good(dry, changed=0)
    assert service(installed) == service_before
    assert unmoved(installed) == before


def test_the_service_works_on_without_the_session_that_installed_it(installed):
    """Nobody is there: the next slots are looked at only after they have passed."""
    assert sessions(installed) == []
    since = now(installed)
    time.sleep(8)
    until = now(installed)
    done = finished(installed, "schedule:pulse", since)
    assert len([work for work in done if work["finished_at"] < until]) >= 2
    assert {work["run"] for work in done} == {installed.cli("health")["service"]["id"]}
