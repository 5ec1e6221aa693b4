"""An installed host with a fault: what refuses to go on, and that the service and its records stay whole."""

import concurrent.futures
import json

import pytest
from archives import consistent
from evidence import canary, good, receipts, running, service
from faults import sentence
from target import wait_until

STATE = "/srv/lucy/state"
STORE = f"{STATE}/agent.sqlite"
UNIT = "/home/lucy/.config/systemd/user/lucy-agent.service"

RAISE = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as store:
    store.execute("UPDATE meta SET version = version + ? WHERE component = 'work'", [int(sys.argv[2])])
store.close()
"""

# As another process of the service user: keeps the store's write lock for some seconds. `now`: at once.
# Else it starts the service and waits until a turn is in its middle; `stop`: it also stops the service then.
HOLDER = """
import sqlite3, subprocess, sys, time
path, seconds, when = sys.argv[1:]
systemctl = lambda verb: subprocess.run(
    ["systemctl", "--user", "--no-block", verb, "lucy-agent.service"], check=True
)
store = sqlite3.connect(path, isolation_level=None, timeout=0)  # waiting in steps would miss the turns
if when != "now":
    systemctl("start")
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    try:
        store.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        continue
    turns = store.execute("SELECT id FROM work WHERE status = 'RUNNING'").fetchall()
    if turns or when == "now":
        print("held", *(work for (work,) in turns), flush=True)
        if when == "stop":
            systemctl("stop")
        time.sleep(float(seconds))
        store.execute("COMMIT")
        sys.exit(0)
    store.execute("COMMIT")
    time.sleep(0.0002)
sys.exit("no turn was begun")
"""


@pytest.fixture(autouse=True)
def whole(installed):
    """After each test new work is finished, and the records are in order."""
    yield
    state = wait_until(lambda: running(installed), 30, "the service runs")
    canary(installed, state.main_pid)
    assert installed.cli("health")["attention"] == []


def ctl(host, *words):
    host.run(["lucy-agent", "systemctl", *words, "lucy-agent"])


def digest(host, *paths):
    return host.run(["sha256sum", *paths]).stdout


def test_credentials_that_others_can_read(installed, refused):
    installed.run(f"chmod 0644 {STATE}/agent.env")
    try:
        shown = f"environment: {STATE}/agent.env is a file, lucy:lucy 0644"
        refused(installed, [shown, "make it a file of lucy with mode 0600, after asking who read it"])
    finally:
        installed.run(f"chmod 0600 {STATE}/agent.env")


def test_credentials_of_another_an_edited_unit_and_current_as_a_folder(installed, refused):
    """For the install and for the uninstall: neither overwrites, removes or restarts anything."""
    installed.run(f"chown root:root {STATE}/agent.env")
    installed.run(f"cp -p {UNIT} /root/unit && sed -i 's/^UMask=.*/UMask=0022/' {UNIT}")
    installed.run(
        "mv /srv/lucy/current /root/current && mkdir /srv/lucy/current && touch /srv/lucy/current/mine"
    )
    said = [
        f"unit: {UNIT}: ",
        "UMask=0077",
        "UMask=0022",
        "put back what 0.",
        "keep an edit as a drop-in",
        "current: /srv/lucy/current is a directory. To do: move it away: current is a link",
    ]
    try:
        refused(installed, [f"environment: {STATE}/agent.env is a file, root:root 0600", *said])
        refused(installed, said, {"uninstall_delete_state": "yes-delete-lucy-agent"}, playbook="uninstall")
    finally:
        installed.run(f"cp -p /root/unit {UNIT} && chown lucy:lucy {STATE}/agent.env")
        installed.run("rm -r /srv/lucy/current && mv /root/current /srv/lucy/current")


def test_a_finished_release_that_was_altered(installed, refused):
    release = installed.run("readlink -f /srv/lucy/current").stdout.strip()
    victim = f"{release}/venv/bin/standfast"
    installed.run(
        f"cp -p {victim} /root/kept && echo '# edited' >> {victim} && touch {release}/venv/extra.py"
    )
    try:
        refused(
            installed,
            [
                f"the installed release {release.rpartition('/')[2]} differs from its seal",
                "venv/bin/standfast: changed",
                "venv/extra.py: extra",
                f"move {release} away and install again",
            ],
            may=["/srv/lucy/receipts"],
        )
        last = list(receipts(installed).values())[-1]
        assert (last["verdict"], last["stopped_at"]) == (
            "refused",
            "Installed | The release is as it was sealed",
        )
    finally:
        installed.run(f"cp -p /root/kept {victim} && rm {release}/venv/extra.py /root/kept")


def test_a_store_that_is_newer_than_the_code(installed, refused):
    known = installed.cli("health")["understood_versions"]["work"]
    ctl(installed, "stop")
    installed.as_user("lucy", ["python3", "-I", "-c", RAISE, STORE, "+7"])
    observed = f"observed: work {known + 7} (this release understands {known})"
    said = ["the store was written by a newer release", observed]
    before = digest(installed, STORE)
    names = installed.run(f"ls -A --ignore='*-wal' --ignore='*-shm' {STATE}").stdout
    try:
        ctl(installed, "start", "--no-block")
        failed = wait_until(
            lambda: (s := service(installed)).exit_status == 3 and s, 30, "the service refuses the store"
        )
        assert failed.result == "exit-code"
        ctl(installed, "stop")
        assert installed.cli("work", "add", "hello", rc=3)["refused"]["code"] == "store_newer"
        refused(installed, said, may=["/srv/lucy/receipts"])
        assert digest(installed, STORE) == before
        # A reader of a WAL store leaves SQLite's two side files, without a page in them.
        assert not installed.run(f"find {STATE} -name '*-wal' -size +0").stdout
        assert installed.run(f"ls -A --ignore='*-wal' --ignore='*-shm' {STATE}").stdout == names
    finally:
        installed.as_user("lucy", ["python3", "-I", "-c", RAISE, STORE, "-7"])
        ctl(installed, "start")


def test_a_release_that_is_not_there_yet_and_is_older_than_the_store(
    installed, refused, controller, tmp_path
):
    """Its manifest says what it understands: nothing of it is copied."""
    known = installed.cli("health")["understood_versions"]
    older = consistent(
        controller.archive, tmp_path / "older.tar", schema_versions={**known, "work": known["work"] - 1}
    )
    said = f"store: the store was written by a newer release: work {known['work']} (this release understands "
    refused(installed, [said, "install the release that wrote it"], {"release_archive": str(older)})


def test_another_release_in_the_place_of_one_that_works(installed, refused, controller, tmp_path):
    """That is an upgrade, which has a backup and a way back: nothing of it is copied."""
    other = consistent(controller.archive, tmp_path / "other.tar", rollback_floor="0.0.8")
    said = ["is installed for lucy-agent and was shown to work", "playbooks/upgrade.yml"]
    refused(installed, said, {"release_archive": str(other)}, may=["/srv/lucy/receipts"])


# Says of every unit that it has a fault, as systemd does of a key that it does not know.
COMPLAINER = "#!/bin/sh\necho \"$5:7: Unknown key name 'Sandbox' in section 'Service', ignoring.\" >&2\n"


def test_a_unit_that_systemd_finds_fault_with(installed, play, controller, tmp_path):
    """It can only be asked for once the release is staged: the run says that it was, and stops nothing."""
    other = consistent(controller.archive, tmp_path / "other.tar", rollback_floor="0.0.8")
    before = running(installed)
    unit = digest(installed, UNIT)
    installed.run("mv /usr/bin/systemd-analyze /root/")
    installed.run("cat > /usr/bin/systemd-analyze && chmod 0755 /usr/bin/systemd-analyze", stdin=COMPLAINER)
    try:
        done = play(installed, {"release_archive": str(other)}, playbook="upgrade")
    finally:
        installed.run("mv /root/systemd-analyze /usr/bin/")
    assert done.rc != 0
    said = sentence(done)
    assert "Refused: systemd finds fault with the unit of release" in said
    assert "Unknown key name 'Sandbox'" in said
    assert "Changed before that: a release folder" in said
    last = list(receipts(installed).values())[-1]
    assert (last["operation"], last["verdict"]) == ("upgrade", "refused")
    assert [one["observed"] for one in last["checks"] if one["name"] == "changed"] == ["a release folder"]
    assert running(installed) == before
    assert digest(installed, UNIT) == unit


def test_an_invalid_shop(installed, refused):
    """The service says the field and stays down, without a loop; the file is kept; mended, it works."""
    shop = f"{STATE}/shop.toml"
    installed.run(f"cp -p {shop} /root/shop.toml")
    installed.run(f"sed -i '0,/^reorder_point = .*/s//reorder_point = \"eight\"/' {shop}")
    before = digest(installed, shop)
    ctl(installed, "restart", "--no-block")
    try:
        state = wait_until(
            lambda: (s := service(installed)).active == "failed" and s, 30, "the service has failed"
        )
        assert (state.exit_status, state.restarts, state.result) == (78, 0, "exit-code")
        journal = installed.run(["lucy-agent", "journalctl", "-n", "20", "-o", "cat"]).stdout
        assert "shop.toml: product.0.reorder_point: " in journal
        assert "Traceback" not in journal
        refused(installed, ["shop.toml: product.0.reorder_point: "], may=["/srv/lucy/receipts"])
        assert digest(installed, shop) == before
    finally:
        installed.run(f"cp -p /root/shop.toml {shop}")
    ctl(installed, "start")


@pytest.fixture
def queue(installed):
    """Twelve requests of as many sessions that wait, with the service stopped."""
    ctl(installed, "stop")
    add = "lucy-agent --json work add 'How is the stock?' --session queue-$RANDOM-$n"
    asked = installed.run(f"set -e; for n in $(seq 12); do {add}; done").stdout
    works = [json.loads(line)["work"] for line in asked.splitlines()]
    assert len(set(works)) == 12
    return works


def held(installed, seconds, when):
    """Run HOLDER; the work that was in the middle of its turn."""
    words = ["python3", "-I", "-c", HOLDER, STORE, str(seconds), when]
    return installed.as_user("lucy", words, timeout=90).stdout.split()[1:]


def ended(host, works):
    """Every one has ended, with one report each: nothing lost, nothing doubled. The rows by their id."""

    def rows():
        listed = {w["id"]: w for w in host.cli("work", "list", "--limit", "1000")["work"]}
        mine = {work: listed[work] for work in works}
        return {row["status"] for row in mine.values()} <= {"DONE", "CANCELED"} and mine

    found = wait_until(rows, 60, "all of them have ended")
    reports = [r["work"] for r in host.cli("report", "list", "--limit", "1000")["reports"]]
    assert sorted(work for work in reports if work in works) == sorted(works)
    return found


def test_the_store_locked_for_three_seconds_in_a_turn(installed, queue):
    (work,) = held(installed, 3, "in a turn")
    pid = running(installed).main_pid
    rows = ended(installed, queue)
    assert work in queue
    ways = {(row["status"], row["generation"], row["reason"]) for row in rows.values()}
    assert ways == {("DONE", 1, "")}
    lengths = {len(installed.cli("work", "show", one)["transcript"]) for one in (work, queue[0], queue[-1])}
    assert len(lengths) == 1  # no step of the one that waited was recorded twice or not at all
    assert running(installed).main_pid == pid


def test_the_store_locked_for_longer_than_anyone_waits(installed):
    """A command says so in its own words and has done nothing; the service waits it out."""
    before = running(installed)
    asked = installed.cli("work", "list", "--limit", "1000")["work"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        holder = pool.submit(held, installed, 8, "now")
        wait_until(
            lambda: installed.run("pgrep -u lucy -f 'agent.sqlite 8 now'", check=False).rc == 0,
            10,
            "the lock is held",
        )
        done = installed.run(["lucy-agent", "work", "add", "How is the stock?"], check=False)
        holder.result()
    assert done.rc == 1
    assert "another process held the store's write lock for 5 s; nothing was written" in done.stderr
    assert "Traceback" not in done.stderr
    assert installed.cli("work", "list", "--limit", "1000")["work"] == asked
    assert running(installed) == before


def stopped_in_a_turn(installed, seconds):
    """The work whose turn waits so long for a write when systemd sends SIGTERM, and what it was then."""
    (work,) = held(installed, seconds, "stop")
    state = wait_until(
        lambda: (s := service(installed)).active == "inactive" and s, 30, "the service has stopped"
    )
    assert (state.sub, state.result, state.exit_status) == ("dead", "success", 0)
    row = installed.cli("work", "show", work)["work"]
    ctl(installed, "start")
    return work, (row["status"], row["generation"])


def test_stopped_in_the_middle_of_a_turn(installed, queue):
    """The turn comes to its end, and no other is begun."""
    _, left = stopped_in_a_turn(installed, 2)
    assert left == ("DONE", 1)
    assert {(row["status"], row["generation"]) for row in ended(installed, queue).values()} == {("DONE", 1)}


def test_stopped_in_the_middle_of_a_turn_that_cannot_go_on(installed, queue):
    """The store stays locked: a clean end, and the work is not lost."""
    work, left = stopped_in_a_turn(installed, 8)
    assert left == ("RUNNING", 1)
    rows = ended(installed, queue)
    closed = rows.pop(work)
    assert (closed["status"], closed["generation"]) == ("CANCELED", 2)
    assert closed["reason"] == "interrupted by a stop of the service"
    assert {(row["status"], row["generation"]) for row in rows.values()} == {("DONE", 1)}
    (report,) = installed.cli("report", "list", "--work", work)["reports"]
    assert "ask" in report["body"].lower()


def test_after_all_that_an_install_has_nothing_to_do_but_to_say_so(installed, play):
    """The refused runs are in the chain; this one proves that all is well again."""
    before = running(installed)
    good(play(installed))
    assert running(installed) == before
    assert list(receipts(installed).values())[-1]["verdict"] == "done"
    assert installed.cli("receipt", "verify")["verified"] is True
