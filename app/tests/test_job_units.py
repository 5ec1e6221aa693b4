"""The units of scheduled jobs: exact, acceptable to systemd, caught up once, no pruning after a failure."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from test_unit_text import RELEASE, directives, facts, installed

from standfast.cli import main as cli
from standfast.errors import BadInput
from standfast.layout import Layout
from standfast.operations.jobs import Job, Sending, describe_job, render_job

__all__ = ["installed"]

GOLDEN = Path(__file__).parent / "golden"
PARTS = [(job, part) for job in ("backup", "rehearse") for part in ("service", "timer")]


@pytest.mark.parametrize(("job", "part"), PARTS)
def test_the_text_is_the_golden_one(job: str, part: str) -> None:
    assert render_job(facts(), Job(job), part) == (GOLDEN / f"lucy-agent-{job}.{part}").read_text()


@pytest.mark.parametrize(("job", "part"), PARTS)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_it(job: str, part: str, tmp_path: Path) -> None:
    root = tmp_path / "srv"
    folder = root / "releases" / RELEASE
    (folder / "venv/bin").mkdir(parents=True)
    (folder / "venv/bin/python").symlink_to(shutil.which("true") or "/bin/true")
    for name in ("service", "timer"):
        (tmp_path / f"lucy-agent-{job}.{name}").write_text(render_job(facts(root), Job(job), name))
    ran = subprocess.run(
        [
            "systemd-analyze",
            "verify",
            "--user",
            "--man=no",
            "--recursive-errors=no",
            str(tmp_path / f"lucy-agent-{job}.{part}"),
        ],
        env={"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "lucy-agent" not in ran.stderr, ran.stderr


@pytest.mark.parametrize("job", ["backup", "rehearse"])
def test_a_missed_run_is_caught_up_once(job: str) -> None:
    assert directives(render_job(facts(), Job(job), "timer"))["Persistent"] == ["true"]


def test_pruning_comes_after_a_verification_of_what_was_made() -> None:
    """systemd runs the commands of a one-shot in turn and stops at the first that fails."""
    text = render_job(facts(), Job("backup", keep=3, days=30, told="reports", copied="units"), "service")
    told = directives(text)
    assert told["Type"] == ["oneshot"]
    words = [command.partition(" --state /srv/lucy/state ")[2] for command in told["ExecStart"]]
    assert words == [
        "backup create --asked-by timer --with reports --copy units",
        "backup verify",
        "backup prune --keep 3 --days 30",
    ]


def test_a_copy_is_sent_after_the_pruning_and_ssh_does_not_stumble() -> None:
    sending = Sending("sftp:vault.test:/srv/a%20b", "/home/lucy/restic.key", keep=9, days=2)
    told = directives(render_job(facts(), Job("backup", sending=sending), "service"))
    assert [command.split()[7] for command in told["ExecStart"]] == ["create", "verify", "prune", "send"]
    assert told["ExecStart"][-1].endswith(
        "backup send --repository sftp:vault.test:/srv/a%%20b"
        " --password-file /home/lucy/restic.key --keep 9 --days 2"
    )
    assert told["InaccessiblePaths"] == ["-/etc/ssh/ssh_config.d"]
    assert "InaccessiblePaths" not in directives(render_job(facts(), Job("backup"), "service"))


@pytest.mark.parametrize(
    ("job", "writes"),
    [
        ("backup", "/srv/lucy/state /srv/lucy/backups"),
        ("rehearse", "/srv/lucy/state /srv/lucy/backups /srv/lucy/receipts"),
    ],
)
def test_it_is_shut_in_and_has_no_credentials(job: str, writes: str) -> None:
    told = directives(render_job(facts(), Job(job), "service"))
    assert told["ReadWritePaths"] == [writes]
    assert told["ProtectSystem"] == ["strict"]
    assert told["UMask"] == ["0077"]
    assert "EnvironmentFile" not in told


@pytest.mark.parametrize(
    "job",
    [
        Job("restore"),
        Job("backup", on_calendar="daily\nOnCalendar=minutely"),
        Job("backup", on_calendar="%h"),
        Job("backup", on_calendar=""),
        Job("backup", keep=0),
        Job("backup", days=-1),
        Job("backup", told="everything"),
        Job("rehearse", sending=Sending("/mnt/vault", "/k")),
        Job("backup", sending=Sending("", "/k")),
        Job("backup", sending=Sending("/mnt/my vault", "/k")),
        Job("backup", sending=Sending("rest:http://lucy:secret@vault.test/", "/k")),
        Job("backup", sending=Sending("/mnt/vault", "")),
        Job("backup", sending=Sending("/mnt/vault", "key")),
        Job("backup", sending=Sending("/mnt/vault", "/home/../key")),
        Job("backup", sending=Sending("/mnt/vault", "/k", keep=0)),
        Job("backup", sending=Sending("/mnt/vault", "/k", days=-1)),
    ],
)
def test_what_systemd_or_the_command_would_not_understand_is_bad_input(installed: Layout, job: Job) -> None:
    with pytest.raises(BadInput):
        describe_job(installed, None, job, "timer")
    with pytest.raises(BadInput):
        describe_job(installed, None, Job("backup"), "socket")


def test_the_command_prints_and_compares(
    installed: Layout, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    call = ["--state", str(installed.state), "unit", "--job", "backup", "--part", "timer"]
    assert cli.main([*call, "--on-calendar", "hourly"]) == 0
    text = capsys.readouterr().out
    assert "OnCalendar=hourly\n" in text
    (tmp_path / "found.timer").write_text(text)
    compared = ["--compare", str(tmp_path / "found.timer")]
    assert cli.main([*call, "--on-calendar", "hourly", *compared]) == 0
    assert cli.main([*call, *compared]) == 3
    assert cli.main([*call[:3], "--on-calendar", "hourly"]) == 2
