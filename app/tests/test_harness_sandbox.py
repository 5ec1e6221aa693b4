"""What the container sandbox decides without a container: settings, holders, names, tags, descriptions."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import images
import pytest
import sandbox
from hosts import Group, HostSpec
from sandbox import Holder, SandboxError
from target import RECAP, TASK


def test_settings_bound_limits_only_without_the_capability() -> None:
    free = sandbox.containers_conf(private=False, bounded=False)
    bound = sandbox.containers_conf(private=True, bounded=True)
    assert "default_ulimits" not in free
    assert "runc" not in free
    assert "pids_limit = 0" in bound
    assert 'runtime = "runc"' in bound
    assert "nofile=" in bound


def test_a_holder_is_not_mistaken_for_another_process() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        holder = Holder.of(process.pid)
        assert holder.alive()
        assert not Holder(holder.pid, holder.started - 1, holder.namespace).alive()
        assert not Holder(holder.pid, holder.started, holder.namespace + 1).alive()
    finally:
        process.kill()
        process.wait()
    time.sleep(0.05)
    assert not holder.alive()


def test_a_survivor_of_a_namespace_is_found_and_a_gone_namespace_is_not() -> None:
    own = Path("/proc/self/ns/mnt").stat().st_ino
    assert sandbox._member_of(own) is not None
    assert sandbox._member_of(1) is None


def test_names_differ_by_group_and_carry_the_checkout() -> None:
    assert Group("a").container("x") == f"{sandbox.PREFIX}-a-x"
    assert Group("a").label != Group("b").label
    assert len(sandbox.PREFIX) == len("standfast-") + 6


def test_image_tags_follow_suite_and_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    before = images.tag("trixie")
    assert before != images.tag("bookworm")
    assert before == images.tag("trixie")
    monkeypatch.setattr(images, "RECIPE", images.RECIPE + "true\n")
    assert images.tag("trixie") != before
    with pytest.raises(SandboxError, match="sid"):
        images.tag("sid")


def test_images_lack_what_a_host_may_lack() -> None:
    assert not {"acl", "python3-venv", "python3-pip"} & set(images.PACKAGES)


def test_the_mirror_is_the_operators_choice_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDFAST_DEBIAN_MIRROR", "file:///mirror")
    assert images.mirror() == "file:///mirror"


def test_a_platform_with_an_unknown_key_is_an_error() -> None:
    assert HostSpec.of_platform({"name": "a", "groups": ["agents"]}) == HostSpec("a")
    with pytest.raises(SandboxError, match="imagee"):
        HostSpec.of_platform({"name": "a", "imagee": "trixie"})


def test_the_sandbox_is_refused_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SandboxError, match="sudo"):
        sandbox.enter()


def test_ansible_output_is_read() -> None:
    recap = RECAP.match("agent                      : ok=4    changed=3    unreachable=0    failed=0")
    assert recap
    assert recap.group(1) == "agent"
    task = TASK.match("TASK [state : Folder | Exists] ****")
    assert task
    assert task.group(1) == "state : Folder | Exists"
    assert TASK.match("PLAY [all] ****") is None
