"""A backup's file comes to the controller, as the role does it: in blocks, private and compared.

Under a cap on the memory of every process of it, with a file that would not fit in.
"""

import hashlib
import json
import os
import pwd
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
CAP = 400 * 1024 * 1024
SIZE = 450 * 1024 * 1024


def capped() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (CAP, CAP))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)  # pytest would keep a gigabyte


def test_a_file_that_fits_in_nobodys_memory_is_fetched(folder: Path) -> None:
    root, here, user = folder / "root", folder / "here", pwd.getpwuid(os.geteuid()).pw_name
    backup = root / "backups/000001"
    backup.mkdir(parents=True)
    here.mkdir(mode=0o700)
    with (backup / "snapshot.sqlite").open("wb") as file:
        file.write(b"the first page")
        file.truncate(SIZE)
    with (backup / "snapshot.sqlite").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    given = {
        "ansible_python_interpreter": sys.executable,
        "instance_name": "test-agent",
        "__host_python": sys.executable,
        "__host_locked": False,
        "__host_request": {
            "instance": "test-agent",
            "user": user,
            "root": str(root),
            "registry": str(folder / "registry"),
        },
        "__backup_login": {"stdout": user},
        "__backup_entry": {"path": str(backup), "sha256": digest, "name": backup.name},
        "__backup_here": str(here),
        "__backup_file": "snapshot.sqlite",
    }
    play = {
        "hosts": "all",
        "gather_facts": False,
        "connection": "local",
        "become": os.geteuid() == 0,  # as the playbook has it; to oneself it needs no help
        "tasks": [{"ansible.builtin.include_tasks": str(CHECKOUT / "roles/backup/tasks/file.yml")}],
    }
    (folder / "play.yml").write_text(yaml.safe_dump([play]))
    ansible = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [ansible, "-i", "host,", "-e", json.dumps(given)]
    done = subprocess.run(
        [*command, str(folder / "play.yml")],
        cwd=CHECKOUT,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_ROLES_PATH": str(CHECKOUT / "roles")},
        preexec_fn=capped,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    came = here / "snapshot.sqlite"
    assert stat.S_IMODE(came.stat().st_mode) == 0o600
    with came.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == digest
