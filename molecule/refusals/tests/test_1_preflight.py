"""What is refused before the first change, on hosts where nothing is installed.

A run costs seconds, so each carries several faults; every one of them must be said.
"""

import pytest
from evidence import listing

PATH_RULE = "to an absolute path of the characters A-Z a-z 0-9 _ . / - without '..' or '//'"


@pytest.mark.parametrize(
    "wrong",
    [
        {
            "instance_root": "/srv/lucy shop",
            "host_mountinfo": "/proc/%n",
            "release_python": "/usr/local/../bin/python3",
        },
        {
            "instance_root": "/srv/$USER",
            "host_mountinfo": "proc/mounts",
            "instance_name": "Lucy",
            "instance_user": "lucy;id",
        },
    ],
)
def test_a_path_or_name_outside_the_allowed_set(bare, refused, wrong):
    """Each by its variable and the rule; `$USER` is read as it stands, not as the host would."""
    refused(
        bare, [f"input: {name} is '{value}'. To do: set {name} to " for name, value in wrong.items()], wrong
    )


def test_an_uninstall_reads_its_path_as_strictly(bare, refused):
    settings = {"instance_root": "/srv/lucy/..", "uninstall_delete_state": "yes-delete-lucy-agent"}
    refused(bare, [f"set instance_root {PATH_RULE}"], settings, playbook="uninstall")


def test_no_python_at_all(bare, refused):
    bare.run("mkdir /root/away && mv /usr/bin/python3* /root/away/")
    try:
        refused(bare, ["python: no Python 3 was found on this host. Install CPython 3.12 or 3.13."])
    finally:
        bare.run("mv /root/away/* /usr/bin/ && rmdir /root/away")


@pytest.mark.parametrize(
    ("kind", "sign", "stop"),
    [
        ("fuse.sshfs", "/home/.ecryptfs/lucy", "30s"),
        # As long as the unit itself is not long enough: the manager's time begins first.
        ("nfs4", "/home/lucy.homedir", "1min 30s"),
    ],
)
def test_a_host_where_it_would_not_last(bare, refused, kind, sign, stop):
    """A far file system, an encrypted home, a hasty user manager, a root that is not its own.

    The kernel has no such mount here: the named stand-in for /proc/self/mountinfo does.
    """
    mounts = f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / /srv rw - {kind} far:/srv rw\n"
    drop_in = "/etc/systemd/system/user@.service.d"
    bare.run(["tee", "/root/mountinfo"], stdin=mounts)
    bare.run(f"mkdir -p {sign} {drop_in} && mkdir -m 0777 /srv/open && mkdir /srv/open/lucy")
    bare.run("touch /srv/open/lucy/photographs")
    bare.run(["tee", f"{drop_in}/hasty.conf"], stdin=f"[Service]\nTimeoutStopSec={stop}\n")
    bare.run("systemctl daemon-reload")
    try:
        refused(
            bare,
            [
                f"filesystem: /srv/open/lucy is on {kind} (far:/srv at /srv)",
                "locks and syncs of a database are not safe there",
                f"home: {sign} exists. To do: use an account whose home is not encrypted",
                f"stops after {stop}; the unit needs 90 s",
                "raise TimeoutStopSec of user@.service above 90 s",
                "root: /srv/open is writable by others than root (root 0777)",
                "identity: /srv/open/lucy holds ['photographs'] and no instance.json",
            ],
            {"host_mountinfo": "/root/mountinfo", "instance_root": "/srv/open/lucy"},
        )
    finally:
        bare.run(f"rm -rf {sign} /home/.ecryptfs /root/mountinfo {drop_in} /srv/open")
        bare.run("systemctl daemon-reload")


def test_too_small_a_disk_and_the_hosts_after_it_are_not_attempted(hosts, bare, refused):
    """One host at a time: the first one's refusal is the end of the roll."""
    before = listing(bare, "/")
    done = refused(
        [hosts["small"], bare],
        [
            "space: 25 MB and",
            "free at least 300 MB and 8000 inodes there",
            "filesystem: /srv/lucy is on tmpfs (tmpfs at /srv)",
            "put instance_root on a local disk: it is gone after a reboot",
            "Not attempted: bare.",
        ],
    )
    assert listing(bare, "/") ^ before == set()
    assert "bare" not in done.hosts


def test_a_controller_without_the_command_and_a_malformed_input(bare, refused):
    """Before the host is asked anything; both name what to do."""
    command = "/opt/nowhere/bin/standfast"
    missing = {"release_controller_cli": command}
    refused(bare, [f"{command} on the controller gave no answer", "run script/bootstrap"], missing)
    malformed = {"release_keep": "some", "service_start_timeout": "long"}
    refused(bare, ["argument 'release_keep' is of type", "'service_start_timeout' is of type"], malformed)


def test_a_host_whose_systemd_can_not_check_a_unit(bare, refused):
    bare.run("mv /usr/bin/systemd-analyze /root/")
    try:
        refused(bare, ["systemd: systemd 257, systemd-analyze is absent", "use a host with systemd 250"])
    finally:
        bare.run("mv /root/systemd-analyze /usr/bin/")
