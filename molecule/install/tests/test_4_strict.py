"""The newest ansible-core, a login that is not root, and a host whose umask is 077."""

import pytest
from evidence import canary, good, modes, receipts, running, service
from target import CHECKOUT

NEWEST = CHECKOUT / ".venv-newest/bin"
CLI = {"release_controller_cli": str(CHECKOUT / ".venv/bin/standfast")}
PLACES = ("/srv/lucy", "/usr/local/bin", "/var/lib/standfast", "/home/lucy/.config")
# Written by the service as it works, so they differ from host to host.
WORKED = ("/srv/lucy/state/outbox/*", "/srv/lucy/state/agent.sqlite-*", "/srv/lucy/receipts/*")


@pytest.fixture(scope="module")
def strict(hosts, controller):
    host = hosts["strict"]
    host.run(
        "printf 'Defaults umask=0077\\nDefaults umask_override\\n' > /etc/sudoers.d/umask"
        " && chmod 0440 /etc/sudoers.d/umask"
        " && sed -i 's/^UMASK.*/UMASK 077/; s/^USERGROUPS_ENAB.*/USERGROUPS_ENAB no/' /etc/login.defs"
    )
    assert host.run("sudo -n sh -c umask", user="admin").stdout.strip() == "0077"
    controller.write_inventory("strict", {"strict": {"ansible_user": "admin"}}, CLI)
    return host


@pytest.fixture(scope="module")
def converged(strict, controller):
    play = controller.playbook(
        "install", "--diff", inventory="strict", binary=str(NEWEST / "ansible-playbook")
    )
    good(play)
    assert play.hosts["strict"]["failed"] == 0
    assert "DEPRECATION" not in play.output
    return strict


def test_it_is_another_ansible(converged, controller):
    (receipt,) = receipts(converged).values()
    major, minor, *_ = receipt["controller"]["ansible_core"].split(".")
    assert (int(major), int(minor)) >= (2, 21)
    assert receipt["verdict"] == "done"


def test_it_works(converged):
    canary(converged, running(converged).main_pid)


def test_owners_and_modes_are_those_of_a_host_with_the_usual_umask(converged, installed):
    there = modes(converged, *PLACES, without=WORKED)
    assert len(there) > 500
    assert there ^ modes(installed, *PLACES, without=WORKED) == set()


def test_installing_again_with_the_older_ansible_changes_nothing(converged, controller):
    before = service(converged)
    again = controller.playbook("install", inventory="strict")
    good(again, changed=0)
    assert service(converged) == before
    assert len(receipts(converged)) == 1
