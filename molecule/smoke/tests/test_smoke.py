"""The harness proves itself on two bare hosts."""

import pytest
from target import wait_until


def test_marker_and_testinfra(hosts):
    for host in hosts.values():
        marker = host.testinfra.file("/root/marker")
        assert marker.exists
        assert marker.mode == 0o600


def test_no_network_and_internal_network(hosts):
    assert hosts["agent"].run("ip -br addr").stdout.split()[0] == "lo"
    assert "eth0" in hosts["old"].run("ip -br addr").stdout
    assert "supplier.test" in hosts["old"].run("cat /etc/hosts").stdout


def test_lingering_service_survives_reboot(agent):
    agent.run(
        "useradd --create-home lucy && loginctl enable-linger lucy && systemctl start user@$(id -u lucy)"
    )
    unit = (
        "[Service]\\nExecStart=/bin/sleep 1000\\nRestart=on-failure\\n[Install]\\nWantedBy=default.target\\n"
    )
    agent.as_user(
        "lucy",
        f"mkdir -p ~/.config/systemd/user && printf '{unit}' > ~/.config/systemd/user/x.service"
        " && systemctl --user daemon-reload && systemctl --user enable --now x",
    )
    before = agent.user_service("lucy", "x.service")
    assert before.active == "active"
    assert agent.user_service("lucy", "nosuch.service").load == "not-found"
    agent.as_user("lucy", f"kill -9 {before.main_pid}")
    wait_until(lambda: agent.user_service("lucy", "x.service").restarts == 1, 10, "systemd restarts x")
    agent.restart()
    after = wait_until(
        lambda: (s := agent.user_service("lucy", "x.service")).active == "active" and s,
        20,
        "x is back by itself",
    )
    assert after.main_pid != before.main_pid
    assert "user" not in agent.run("loginctl list-sessions --no-legend | awk '{print $6}'").stdout.split()


def test_wait_until_says_what_it_saw():
    with pytest.raises(AssertionError, match=r"within 0.1 s: never; last seen: 0"):
        wait_until(lambda: 0, 0.1, "never")


def test_playbook_and_kill(agent, controller):
    (controller.folder / "playbooks").mkdir(exist_ok=True)
    (controller.folder / "playbooks/slow.yml").write_text(
        "- hosts: agents\n  gather_facts: false\n  tasks:\n"
        "    - {name: One, ansible.builtin.command: id}\n"
        "    - {name: Two, ansible.builtin.command: sleep 3}\n"
        "    - {name: Three, ansible.builtin.command: touch /root/three}\n"
    )
    controller.write_inventory("yours", {"agent": {"ansible_user": "admin", "ansible_become": True}})
    killed = controller.playbook("slow", kill_at=2)
    assert killed.killed
    assert killed.tasks == ["One", "Two"]
    assert not agent.testinfra.file("/root/three").exists
    done = controller.playbook("slow")
    assert done.rc == 0, done.output
    assert done.hosts["agent"]["changed"] == done.changed == 3
    assert agent.testinfra.file("/root/three").user == "root"
