"""A bare host, and a dry run on it."""


def test_the_host_has_no_network(agent):
    links = agent.run(["ip", "-brief", "link"]).stdout.splitlines()
    assert [line.split()[0] for line in links] == ["lo"]
    assert agent.run(["ip", "route"]).stdout == ""


def test_the_host_has_no_acl_package(agent):
    assert agent.run("command -v setfacl getfacl", check=False).rc != 0


def test_a_dry_run_changes_nothing_on_a_bare_host(dry_run):
    assert len(dry_run.before) > 5000
    # Ansible itself makes an empty folder for what it would copy.
    own = {"/root/.ansible root:root 700 d", "/root/.ansible/tmp root:root 700 d"}
    assert (dry_run.after ^ dry_run.before) - own == set()


def test_a_dry_run_leaves_no_receipt(dry_run):
    assert dry_run.copies == []
