"""install, status, copies in a repository, add-an-instance, uninstall: one host from bare to bare.

Tests build on the ones before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest
from evidence import database, database_at_rest, good, receipts
from runbook import BlockFailed
from sandbox import CHECKOUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook import Executor
    from target import Controller, Host


PASSWORD = "CANARYa-password-that-nobody-may-see"
PASSWORD_FILE = "/home/lucy/restic.key"
REPOSITORY = "sftp:keeper@vault.test:/srv/keeper/lucy"


@pytest.fixture(scope="module")
def fresh(hosts: dict[str, Host], controller: Controller) -> Host:
    controller.write_inventory("yours", {"fresh": {"ansible_user": "admin"}})
    second = {"instance_name": "rosa-agent", "instance_user": "rosa", "instance_root": "/srv/rosa"}
    controller.write_inventory("second", {"fresh": {"ansible_user": "admin"}}, second)
    return hosts["fresh"]


def test_status_of_a_host_without_an_instance_stops_at_its_precondition(
    fresh: Host, runbook: Callable[[str, Host], Executor]
) -> None:
    with pytest.raises(BlockFailed, match="lucy-agent"):
        runbook("status", fresh).run("Preconditions")


def test_install(fresh: Host, runbook: Callable[[str, Host], Executor]) -> None:
    runbook("install", fresh).run("Preconditions", "Diagnosis", "Rollback point", "Act", "Verify")


def test_status(fresh: Host, runbook: Callable[[str, Host], Executor]) -> None:
    runbook("status", fresh).run()


def test_preflight_beside_a_service_that_works(fresh: Host, runbook: Callable[[str, Host], Executor]) -> None:
    before = fresh.user_service("lucy", "lucy-agent.service")
    page = runbook("preflight", fresh)
    page.run("Preconditions", "Diagnosis")
    store = database_at_rest(fresh)
    page.run("Act")
    assert database(fresh) == store
    page.run("Verify")
    assert fresh.user_service("lucy", "lucy-agent.service") == before


def test_preflight_stops_at_an_edited_unit_and_shows_the_line(
    fresh: Host, runbook: Callable[[str, Host], Executor]
) -> None:
    unit = "/home/lucy/.config/systemd/user/lucy-agent.service"
    before = fresh.user_service("lucy", "lucy-agent.service")
    fresh.run(f"cp -p {unit} /root/unit && printf 'MemoryMax=1G\\n' >> {unit}")
    store = database_at_rest(fresh)
    try:
        with pytest.raises(BlockFailed, match="-MemoryMax=1G"):
            runbook("preflight", fresh).run("Act")
    finally:
        fresh.run(f"cp -p /root/unit {unit}")
    assert database(fresh) == store
    assert fresh.user_service("lucy", "lucy-agent.service") == before


@pytest.fixture(scope="module")
def vault(fresh: Host, hosts: dict[str, Host], controller: Controller) -> Host:
    """Another host, where the service user of the first has SFTP and a folder."""
    host = hosts["vault"]
    make_key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/home/lucy/.ssh/id_ed25519"]
    fresh.run("install -d -m 0700 -o lucy -g lucy /home/lucy/.ssh")
    fresh.run(make_key, user="lucy")
    fresh.run(f"umask 077 && cat > {PASSWORD_FILE}", user="lucy", stdin=f"{PASSWORD}\n")
    host.run("useradd --create-home --home-dir /srv/keeper --shell /usr/sbin/nologin keeper")
    host.run(
        "printf 'Match User keeper\\nForceCommand internal-sftp\\n' > /etc/ssh/sshd_config.d/keeper.conf"
    )
    host.run("ssh-keygen -A && systemctl restart ssh && install -d -m 0700 -o keeper /srv/keeper/.ssh")
    public = fresh.run("cat /home/lucy/.ssh/id_ed25519.pub").stdout
    host.run("umask 077 && cat > /srv/keeper/.ssh/authorized_keys", user="keeper", stdin=public)
    known = f"vault.test {host.run('cat /etc/ssh/ssh_host_ed25519_key.pub').stdout}"
    fresh.run("cat > /home/lucy/.ssh/known_hosts", user="lucy", stdin=known)
    repository = {
        "backup_offhost": "restic",
        "backup_restic_repository": REPOSITORY,
        "backup_restic_password_file": PASSWORD_FILE,
    }
    controller.write_inventory("yours", {"fresh": {"ansible_user": "admin"}}, repository)
    return host


def test_backups_go_to_a_repository_and_come_back(
    fresh: Host, vault: Host, runbook: Callable[[str, Host], Executor]
) -> None:
    before = fresh.user_service("lucy", "lucy-agent.service")
    runbook("backup-to-a-repository", fresh).run()
    assert fresh.user_service("lucy", "lucy-agent.service") == before
    assert len(vault.run("ls /srv/keeper/lucy/snapshots").stdout.split()) == 2
    secret = f"! grep -rqF -e {PASSWORD} /srv/lucy/receipts /srv/lucy/state /home/lucy/.config"
    fresh.run(f"{secret} && ! journalctl --no-pager | grep -qF -e {PASSWORD}")
    assert "copy_failed" not in rules(fresh)


def test_a_wrong_password_is_refused_and_the_backup_stays(
    fresh: Host, vault: Host, controller: Controller
) -> None:
    snapshots = vault.run("ls /srv/keeper/lucy/snapshots").stdout
    backups = names(fresh)
    fresh.run(f"umask 077 && cat > {PASSWORD_FILE}", user="lucy", stdin="another\n")
    play = controller.playbook("backup")
    assert play.rc != 0
    assert "the password is not the repository's" in play.output
    assert f"put the right one into {PASSWORD_FILE}" in play.output
    assert len(names(fresh)) == len(backups) + 1
    assert fresh.cli("backup", "verify")["ok"] is True
    assert "copy_failed" in rules(fresh)
    assert vault.run("ls /srv/keeper/lucy/snapshots").stdout == snapshots
    fresh.run(f"cat > {PASSWORD_FILE}", user="lucy", stdin=f"{PASSWORD}\n")


def test_the_timer_tells_of_a_repository_that_cannot_be_reached(fresh: Host, vault: Host) -> None:
    """The backup is made, verified and pruned all the same; the next copy that succeeds clears it up."""
    backups = names(fresh)
    vault.run("systemctl stop ssh.socket ssh.service", check=False)
    ran = fresh.run(["lucy-agent", "systemctl", "start", "lucy-agent-backup.service"], check=False)
    assert ran.rc != 0
    assert len(names(fresh)) == len(backups) + 1
    (told,) = (one for one in fresh.cli("health", rc=4)["attention"] if one["rule"] == "copy_failed")
    assert "there is no repository that can be reached there" in told["observed"]
    vault.run("systemctl start ssh.service")
    fresh.run(["lucy-agent", "systemctl", "start", "lucy-agent-backup.service"], timeout=120)
    assert "copy_failed" not in rules(fresh)


@pytest.mark.skipif(not os.environ.get("STANDFAST_FULL"), reason="the full tier does it")
def test_a_large_backup_is_fetched_over_ssh(fresh: Host, controller: Controller) -> None:
    """1 GiB, by a login that is not root, with a key; other tests reach their hosts without SSH servers."""
    fresh.as_user("lucy", "systemctl --user stop lucy-agent")
    past = (CHECKOUT / "script/lib/history.py").read_text()
    words = ["python3", "-I", "-", "/srv/lucy/state/agent.sqlite", "240000", "4000"]
    fresh.as_user("lucy", words, stdin=past, timeout=300)
    fresh.as_user("lucy", "systemctl --user start lucy-agent", timeout=90)
    capped = controller.folder / "capped-playbook"
    capped.write_text(f'#!/bin/sh\nulimit -v {400 * 1024} && exec ansible-playbook "$@"\n')
    capped.chmod(0o700)
    key = controller.folder / "login"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    fresh.run(
        "ssh-keygen -A && systemctl restart ssh && install -d -m 0700 -o admin -g admin /home/admin/.ssh"
    )
    public = key.with_suffix(".pub").read_text()
    fresh.run("umask 077 && cat > /home/admin/.ssh/authorized_keys", user="admin", stdin=public)
    known = controller.folder / "known_hosts"
    known.write_text(f"fresh {fresh.run('cat /etc/ssh/ssh_host_ed25519_key.pub').stdout}")
    # The hosts' networks are closed to the controller: its way to the server's port leads through the host's.
    port = "exec 3<>/dev/tcp/127.0.0.1/22; cat <&3 & exec cat >&3"
    proxy = shlex.join(["nsenter", f"--net=/proc/{fresh.pid()}/ns/net", "bash", "-c", port])
    options = ["-F", "none", "-o", f"ProxyCommand={proxy}", "-o", f"UserKnownHostsFile={known}"]
    by_ssh = {
        "ansible_connection": "ssh",
        "ansible_host": "fresh",
        "ansible_user": "admin",
        "ansible_ssh_private_key_file": str(key),
        "ansible_ssh_common_args": shlex.join([*options, "-o", "IdentitiesOnly=yes"]),
    }
    controller.write_inventory("ssh", {"fresh": by_ssh}, {"backup_offhost": "fetch"})
    good(controller.playbook("backup", inventory="ssh", binary=str(capped), timeout=900))
    entry = fresh.cli("backup", "list")["backups"][0]
    fetched = controller.folder / "backups/fresh/lucy-agent" / entry["name"]
    assert (fetched / "snapshot.sqlite").stat().st_size >= 1 << 30
    with (fetched / "snapshot.sqlite").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == entry["sha256"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (fetched, *fetched.iterdir()) if path.is_dir()} == {
        0o700
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in fetched.rglob("*") if path.is_file()} == {0o600}
    assert fresh.run("ls -A /var/lib/standfast/outgoing").stdout == ""
    last = list(receipts(fresh).values())[-1]
    assert (last["operation"], last["verdict"]) == ("backup", "done")
    assert "Accepted publickey for admin" in fresh.run("journalctl --no-pager -u ssh").stdout


def names(host: Host) -> list[str]:
    return [one["name"] for one in host.cli("backup", "list")["backups"]]


def rules(host: Host) -> set[str]:
    done = host.run(["lucy-agent", "--json", "health"], check=False)
    return {one["rule"] for one in json.loads(done.stdout)["attention"]}


def test_add_an_instance_and_take_it_off_again(fresh: Host, runbook: Callable[[str, Host], Executor]) -> None:
    before = fresh.user_service("lucy", "lucy-agent.service")
    runbook("add-an-instance", fresh).run()
    assert fresh.user_service("lucy", "lucy-agent.service") == before


def test_uninstall_and_its_rollback(fresh: Host, runbook: Callable[[str, Host], Executor]) -> None:
    page = runbook("uninstall", fresh)
    page.run("Preconditions", "Diagnosis", "Rollback point", "Act", "Verify")
    page.run("Rollback")
    assert fresh.user_service("lucy", "lucy-agent.service").active == "active"


def test_rollback_of_an_install(fresh: Host, runbook: Callable[[str, Host], Executor]) -> None:
    runbook("install", fresh).run("Rollback")
    assert not fresh.testinfra.file("/usr/local/bin/lucy-agent").exists
    assert fresh.testinfra.file("/srv/lucy/state/agent.sqlite").exists
