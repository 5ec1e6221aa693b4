"""Three instances on one host: lucy's, rosa's, and a second one of lucy's. No run for one touches another.

lucy-agent was there before. The tests go on from each other, in their order.
"""

import json

import pytest
from archives import consistent
from evidence import canary, copies, good, listing, receipts, running, service
from target import wait_until

LUCY = {"instance_name": "lucy-agent", "instance_user": "lucy", "instance_root": "/srv/lucy"}
ROSA = {"instance_name": "rosa-agent", "instance_user": "rosa", "instance_root": "/srv/rosa"}
SECOND = {"instance_name": "lucy-stall", "instance_user": "lucy", "instance_root": "/srv/stall"}
ALL = (LUCY, ROSA, SECOND)


def root(instance):
    return instance["instance_root"]


def unit_folder(instance):
    return f"/home/{instance['instance_user']}/.config/systemd/user"


def unit(instance):
    return f"{unit_folder(instance)}/{instance['instance_name']}.service"


def names(instance):
    return instance["instance_name"], instance["instance_user"]


def facts(host, instance):
    """All that is one instance's: its files with their times, its process, and what its store says."""
    name, user = names(instance)
    own = [
        root(instance),
        unit(instance),
        f"/usr/local/bin/{name}",
        f"/var/lib/standfast/instances/{name}.json",
        f"/var/lib/standfast/records/{name}.json",
    ]
    files = listing(host, *own, without=[f"{root(instance)}/state/agent.sqlite-*"])
    enabled = host.as_user(user, ["systemctl", "--user", "is-enabled", f"{name}.service"]).stdout
    work = host.cli("work", "list", "--limit", "1000", instance=name)["work"]
    linger = host.run(["loginctl", "show-user", user, "--property=Linger"]).stdout
    return files | {str(running(host, name, user)), enabled, json.dumps(work), linger}


@pytest.fixture(scope="session")
def play(agent, controller):
    """A run for one instance; the facts of the `others` are the same before and after it."""

    def run(instance, others, playbook="install", *, variables=None, **how):
        controller.write_inventory("yours", {"agent": {}}, {**instance, **(variables or {})})
        before = {names(other): facts(agent, other) for other in others}
        done = controller.playbook(playbook, **how)
        for other in others:
            assert facts(agent, other) ^ before[names(other)] == set(), names(other)
        return done

    return run


def refused(done, *words):
    assert done.rc != 0, done.output[-3000:]
    said = " ".join(done.output.rpartition("The run stops here]")[2].split())
    assert [word for word in ("Refused: ", *words) if word not in said] == [], said


@pytest.fixture(scope="module", autouse=True)
def lucy(agent):
    return wait_until(lambda: running(agent), 30, "lucy-agent runs")


def test_another_user_is_added(agent, play):
    good(play(ROSA, [LUCY]))
    canary(agent, running(agent, *names(ROSA)).main_pid, "rosa-agent")


def test_another_name_for_the_same_user_is_added(agent, play):
    good(play(SECOND, [LUCY, ROSA]))
    canary(agent, running(agent, *names(SECOND)).main_pid, "lucy-stall")


def test_each_has_its_own_process_store_chain_and_folder(agent):
    pids = {running(agent, *names(instance)).main_pid for instance in ALL}
    assert len(pids) == 3
    epochs = {agent.cli("health", instance=name)["epoch"] for name, _ in map(names, ALL)}
    assert len(epochs) == 3
    for instance in ALL:
        name, user = names(instance)
        assert [r["instance"] for r in receipts(agent, root(instance)).values()] == [name]
        text = agent.run(["cat", unit(instance)]).stdout
        assert f"ReadWritePaths={root(instance)}/state\n" in text
        others = [root(other) for other in ALL if other is not instance]
        assert [path for path in others if path in text] == []
        identity = json.loads(agent.run(["cat", f"{root(instance)}/instance.json"]).stdout)
        assert identity == {"format": 1, "instance": name, "user": user, "root": root(instance)}


def test_one_user_can_not_read_the_others(agent):
    for path in (
        "/srv/lucy/instance.json",
        "/srv/lucy/state",
        "/srv/lucy/receipts",
        "/srv/stall/current/manifest.json",
    ):
        assert "Permission denied" in agent.as_user("rosa", ["ls", path], check=False).stderr


EVA = {"instance_name": "eva-agent", "instance_user": "eva", "instance_root": "/srv/eva"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"instance_root": "/srv/lucy"}, ['/srv/lucy/instance.json says {"instance": "lucy-agent"']),
        ({"instance_name": "lucy-agent"}, ["lucy-agent is already installed for lucy at /srv/lucy"]),
        (
            {"instance_root": "/srv/lucy/state/eva", "instance_name": "systemctl"},
            ["/srv/lucy/state/eva lies in /srv/lucy, the root of lucy-agent", "helper: /usr/bin/systemctl"],
        ),
    ],
)
def test_what_is_anothers_is_refused(agent, play, changed, said):
    refused(play({**EVA, **changed}, ALL), *said)
    assert not agent.testinfra.file("/srv/eva").exists
    assert not agent.testinfra.user("eva").exists


def test_installing_one_again_changes_nothing(agent, play):
    good(play(ROSA, [LUCY, ROSA, SECOND]), changed=0)


def test_one_gets_another_release(agent, play, controller):
    """Its unit then names that release; the other one of the same user goes on in its process."""
    archive = consistent(controller.archive, controller.folder / "dist/other.tar", rollback_floor="0.0.9")
    before = running(agent, *names(SECOND))
    good(play(SECOND, [LUCY, ROSA], "upgrade", variables={"release_archive": str(archive)}))
    after = running(agent, *names(SECOND))
    assert after.main_pid != before.main_pid
    canary(agent, after.main_pid, "lucy-stall")
    current = {
        agent.run(["readlink", f"{root(instance)}/current"]).stdout.strip() for instance in (LUCY, ROSA)
    }
    other = agent.run(["readlink", "/srv/stall/current"]).stdout.strip()
    assert len(current) == 1
    assert other not in current
    assert f"ExecStart=/srv/stall/{other}/venv/bin/python " in agent.run(["cat", unit(SECOND)]).stdout


def test_after_a_reboot_all_three_work(agent):
    agent.restart()
    for instance in ALL:
        state = wait_until(lambda one=instance: running(agent, *names(one)), 30, "it is back by itself")
        canary(agent, state.main_pid, instance["instance_name"])


def test_a_wrong_word_deletes_nothing(agent, play):
    """Another instance's name is the wrong word too."""
    word = {"uninstall_delete_state": "yes-delete-lucy-agent"}
    done = play(SECOND, ALL, "uninstall", variables=word)
    assert done.rc != 0
    assert "set it to yes-delete-lucy-stall to delete" in " ".join(done.output.split())


def test_one_of_two_of_a_user_is_taken_off_and_its_state_stays(agent, play):
    state = listing(agent, "/srv/stall/state", "/srv/stall/receipts")
    good(play(SECOND, [LUCY, ROSA], "uninstall"))
    assert service(agent, *names(SECOND)).load == "not-found"
    kept = {line.split(" ")[0] for line in listing(agent, "/srv/stall/state", "/srv/stall/receipts")}
    assert {line.split(" ")[0] for line in state if "agent.sqlite-" not in line} <= kept
    gone = [unit(SECOND), "/usr/local/bin/lucy-stall", "/srv/stall/releases", "/srv/stall/current"]
    assert [path for path in gone if agent.testinfra.file(path).exists] == []
    chain = [r["operation"] for r in receipts(agent, "/srv/stall").values()]
    assert chain == ["install", "upgrade", "uninstall"]
    assert agent.testinfra.file("/var/lib/systemd/linger/lucy").exists  # the other one needs it


def test_the_right_word_deletes_one_for_good(agent, play, controller):
    good(play(ROSA, [LUCY], "uninstall", variables={"uninstall_delete_state": "yes-delete-rosa-agent"}))
    gone = ["/srv/rosa", unit(ROSA), "/usr/local/bin/rosa-agent", "/var/lib/systemd/linger/rosa"]
    assert [path for path in gone if agent.testinfra.file(path).exists] == []
    assert agent.testinfra.user("rosa").exists
    kept = copies(controller.folder / "receipts/agent")
    rosas = [r["operation"] for name, r in kept.items() if name.startswith("rosa-agent-0")]
    assert rosas == ["install", "uninstall"]


def test_what_is_off_comes_back_with_its_records(agent, play):
    """The way back of an uninstall: the same install again finds the state as it was left."""
    good(play(SECOND, [LUCY]))
    canary(agent, running(agent, *names(SECOND)).main_pid, "lucy-stall")
    chain = [r["operation"] for r in receipts(agent, "/srv/stall").values()]
    assert chain == ["install", "upgrade", "uninstall", "install"]
    assert agent.cli("receipt", "verify", instance="lucy-stall")["verified"] is True


def test_the_first_never_noticed(agent):
    state = running(agent)
    assert state.restarts == 0
    canary(agent, state.main_pid)
    assert len(receipts(agent)) == 1
