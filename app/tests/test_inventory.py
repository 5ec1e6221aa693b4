"""The example inventory with credentials beside it, as Ansible reads it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
TOKEN = "a-bearer-token-0123456789"


@pytest.fixture
def yours(tmp_path: Path) -> Path:
    folder = tmp_path / "inventories/yours"
    shutil.copytree(CHECKOUT / "inventories/example", folder)
    (folder / "files").mkdir()
    (folder / "files/supplier-token").write_text(TOKEN + "\n")
    (folder / "files/agent-env.yml").write_text("STANDFAST_SUPPLIER_TOKEN: " + TOKEN + "\n")
    (folder / "files/shop.toml").write_text("[shop]\n")
    return folder


def listed(inventory: Path) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-inventory"), "-i", inventory, "--list"],
        env=os.environ | {"ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize("named", ["hosts.yml", "."], ids=["the file", "its folder"])
def test_no_credential_becomes_a_host_a_variable_or_a_warning(yours: Path, named: str) -> None:
    found, said = listed(yours / named)
    assert found["agents"]["hosts"] == ["agent-1.example.org"]
    assert list(found["_meta"]["hostvars"]) == ["agent-1.example.org"]
    assert TOKEN not in said
    assert "WARNING" not in said


def test_the_example_is_copied_with_its_own_paths(yours: Path) -> None:
    """What it names beside itself lies in files/, and it tells to name the file, not the folder."""
    text = (yours / "hosts.yml").read_text()
    assert text.count("{{ inventory_dir }}/") == text.count("{{ inventory_dir }}/files/") > 3
    assert text.count("-i inventories/yours") == text.count("-i inventories/yours/hosts.yml") > 1
