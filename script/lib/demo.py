"""Show the whole story on one host in a container, from the source tree to new work after a reboot.

    script/demo            build a release, boot a bare host without a network, install it through
                           playbooks/install.yml, wait for the scheduled brief, kill the process, reboot the
                           host: new work is finished each time
    script/demo --day      another story, on two hosts: a backup, a lost state, a paused restore, and a
                           recovery by an exact plan; nothing is paid twice
    script/demo --clean    remove the hosts and everything else that the demonstrations made

Takes about four minutes the first time (packages, the host's image), two later. A run replaces the hosts of
an earlier one. Nothing listens on a port and nothing outside this checkout is changed but Debian packages
that containers need.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import bundle
import demo_day
import images
from hosts import Group, HostSpec, wait_booted
from sandbox import CHECKOUT, SandboxError, enter, podman, settle
from telling import DemoError, Progress, Shop, play, wait_for

if TYPE_CHECKING:
    from pathlib import Path

GROUP = Group("demo")
HOST = "shop"
FOLDER = CHECKOUT / "build/demo"
STEPS = 7
SHOP = Shop(GROUP, HOST)

AFTERWARDS = f"""
look around:  script/host --group demo login {HOST}
              then: lucy-agent health, lucy-agent stock, lucy-agent work list, lucy-agent receipt show,
              lucy-agent journalctl -u lucy-agent
ask it:       script/host --group demo exec {HOST} lucy-agent work add 'Which product is low?'
receipts:     copies are in build/demo/receipts/{HOST}/
clean up:     script/demo --clean
"""


def briefs() -> list[dict[str, Any]]:
    """Finished work of the brief's schedule, newest first."""
    done = SHOP.ask("work", "list", "--status", "DONE")["work"]
    return [work for work in done if work["session"].startswith("schedule:")]


def new_brief(known: set[str]) -> dict[str, Any]:
    return wait_for(
        lambda: next((brief for brief in briefs() if brief["id"] not in known), None),
        "a scheduled brief, finished by the installed service",
    )


def written(brief: dict[str, Any]) -> str:
    """The brief as Lucy reads it."""
    report = SHOP.ask("report", "list", "--work", brief["id"])["reports"][0]
    return (
        f"report {report['id']} of {report['created_at']}, delivery {report['delivery']}:\n\n{report['body']}"
    )


def finished(brief: dict[str, Any]) -> str:
    return f"brief {brief['id']} at {brief['finished_at']}"


def main_pid() -> int:
    return int(SHOP.agent("systemctl", "show", "--property=MainPID", "--value", "lucy-agent"))


def install(archive: Path) -> None:
    inventories = (GROUP.inventory(FOLDER / "inventory.json"), "inventories/demo/agents.yml")
    settings = {"release_archive": str(archive), "receipt_controller_folder": str(FOLDER / "receipts")}
    play("install", inventories, settings, FOLDER / "install.log")


def demonstrate() -> None:
    enter()
    FOLDER.mkdir(parents=True, exist_ok=True)
    progress = Progress(STEPS)
    progress.step("building the release from this source tree")
    archive = bundle.ensure()
    progress.say(f"{archive.name}, {archive.stat().st_size / 1e6:.1f} MB")

    progress.step("booting a bare Debian 13 host in a container, without any network")
    images.ensure("trixie")
    GROUP.boot(HostSpec(HOST))

    progress.step("installing with playbooks/install.yml (about 40 s)")
    install(archive)
    progress.say("installed; the playbook's output is in build/demo/install.log. Its receipt:")
    progress.say(SHOP.agent("receipt", "show"))

    progress.step("waiting for the scheduled brief (one is due every minute)")
    first = new_brief(set())
    progress.say(written(first))

    known = {brief["id"] for brief in briefs()}
    progress.step("killing the agent's process (SIGKILL) and waiting for another brief")
    before = main_pid()
    SHOP.run("kill", "-KILL", str(before))
    second = new_brief(known)
    progress.say(f"process {before} was killed; process {main_pid()} finished {finished(second)}")

    known = {brief["id"] for brief in briefs()}
    progress.step("rebooting the host; nobody logs in")
    podman("restart", "--time", "60", GROUP.container(HOST))
    wait_booted(GROUP.container(HOST))
    third = new_brief(known)
    progress.say(f"process {main_pid()} finished {finished(third)}")

    progress.step("done: new work was finished after the install, after the kill and after the reboot")
    progress.say(AFTERWARDS)


def clean() -> None:
    """Remove the hosts, their image (unless others run from it), the releases and the copied receipts."""
    if shutil.which("podman"):
        enter()
        GROUP.remove()
        demo_day.GROUP.remove()
        podman("image", "rm", images.tag("trixie"), check=False)
        settle()
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.rmtree(demo_day.FOLDER, ignore_errors=True)
    shutil.rmtree(bundle.FOLDER, ignore_errors=True)
    print(
        "demo: hosts, receipts and releases are gone; their image, too, unless other hosts run from it.\n"
        "Kept: .venv, downloaded wheels (~/.cache/standfast) and the Debian packages that run containers."
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="script/demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--day", action="store_true", help="tell the day of a lost state")
    parser.add_argument("--clean", action="store_true", help="remove what the demonstration made")
    options = parser.parse_args()
    os.chdir(CHECKOUT)
    try:
        if options.clean:
            clean()
        elif options.day:
            demo_day.demonstrate()
        else:
            demonstrate()
    except (DemoError, SandboxError, subprocess.CalledProcessError) as problem:
        print(f"demo: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped; the hosts stay as they are. script/demo --clean removes them.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
