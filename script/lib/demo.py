"""Show the whole story on one host in a container, from the source tree to new work after a reboot.

    script/demo            build a release, boot a bare host without a network, install it through
                           playbooks/install.yml, wait for the scheduled brief, kill the process, reboot the
                           host: new work is finished each time
    script/demo --clean    remove the host and everything else that the demonstration made

Takes about four minutes the first time (packages, the host's image), two later. A run replaces the host of an
earlier one. Nothing listens on a port and nothing outside this checkout is changed but Debian packages that
containers need.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import bundle
import images
from hosts import Group, HostSpec, wait_booted
from sandbox import CHECKOUT, SandboxError, enter, podman, settle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GROUP = Group("demo")
HOST = "shop"
FOLDER = CHECKOUT / "build/demo"
AGENT = "/usr/local/bin/lucy-agent"
STEPS = 7
# A brief is due every minute; a restart after a kill takes RestartSec (10 s) first.
PATIENCE = 150.0

AFTERWARDS = f"""
look around:  script/host --group demo login {HOST}
              then: lucy-agent health, lucy-agent stock, lucy-agent work list, lucy-agent receipt show,
              lucy-agent journalctl -u lucy-agent
ask it:       script/host --group demo exec {HOST} lucy-agent work add 'Which product is low?'
receipts:     copies are in build/demo/receipts/{HOST}/
clean up:     script/demo --clean
"""


class DemoError(Exception):
    """A step did not show what it should; the message says what was seen."""


class Progress:
    """A numbered line for each step, with the seconds since the start."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.number = 0

    def step(self, text: str) -> None:
        self.number += 1
        print(f"\ndemo {self.number}/{STEPS} [{time.monotonic() - self.started:4.0f} s] {text}", flush=True)

    def say(self, text: str) -> None:
        print("\n".join(f"  {line}" for line in text.rstrip().splitlines()), flush=True)


def on_host(*words: str, check: bool = True) -> str:
    done = podman("exec", GROUP.container(HOST), *words, check=False)
    if check and done.returncode != 0:
        raise DemoError(f"`{' '.join(words)}` ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def ask(*words: str) -> dict[str, Any]:
    """The JSON that the installed command line prints."""
    answer: dict[str, Any] = json.loads(on_host(AGENT, "--json", *words))
    return answer


def wait_for[T](look: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(DemoError, ValueError):
            seen = look()
            if seen:
                return seen
        time.sleep(1)
    raise DemoError(f"not within {PATIENCE:.0f} s: {what}")


def briefs() -> list[dict[str, Any]]:
    """Finished work of the brief's schedule, newest first."""
    done = ask("work", "list", "--status", "DONE")["work"]
    return [work for work in done if work["session"].startswith("schedule:")]


def new_brief(known: set[str]) -> dict[str, Any]:
    return wait_for(
        lambda: next((brief for brief in briefs() if brief["id"] not in known), None),
        "a scheduled brief, finished by the installed service",
    )


def written(brief: dict[str, Any]) -> str:
    """The brief as Lucy reads it."""
    report = ask("report", "list", "--work", brief["id"])["reports"][0]
    return (
        f"report {report['id']} of {report['created_at']}, delivery {report['delivery']}:\n\n{report['body']}"
    )


def finished(brief: dict[str, Any]) -> str:
    return f"brief {brief['id']} at {brief['finished_at']}"


def main_pid() -> int:
    return int(on_host(AGENT, "systemctl", "show", "--property=MainPID", "--value", "lucy-agent"))


def install(archive: Path) -> None:
    inventory = GROUP.inventory(FOLDER / "inventory.json")
    settings = {"release_archive": str(archive), "receipt_controller_folder": str(FOLDER / "receipts")}
    log = FOLDER / "install.log"
    with log.open("w") as output:
        done = subprocess.run(
            [
                "ansible-playbook",
                "-i",
                inventory,
                "-i",
                "inventories/demo/agents.yml",
                "playbooks/install.yml",
                "-e",
                json.dumps(settings),
            ],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        tail = "\n".join(log.read_text().splitlines()[-40:])
        raise DemoError(f"playbooks/install.yml ended with {done.returncode}:\n{tail}")


def demonstrate() -> None:
    enter()
    FOLDER.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    progress.step("building the release from this source tree")
    archive = bundle.ensure()
    progress.say(f"{archive.name}, {archive.stat().st_size / 1e6:.1f} MB")

    progress.step("booting a bare Debian 13 host in a container, without any network")
    images.ensure("trixie")
    GROUP.boot(HostSpec(HOST))

    progress.step("installing with playbooks/install.yml (about 40 s)")
    install(archive)
    progress.say("installed; the playbook's output is in build/demo/install.log. Its receipt:")
    progress.say(on_host(AGENT, "receipt", "show"))

    progress.step("waiting for the scheduled brief (one is due every minute)")
    first = new_brief(set())
    progress.say(written(first))

    known = {brief["id"] for brief in briefs()}
    progress.step("killing the agent's process (SIGKILL) and waiting for another brief")
    before = main_pid()
    on_host("kill", "-KILL", str(before))
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
    """Remove the host, its image (unless other hosts run from it), the release and the copied receipts."""
    if shutil.which("podman"):
        enter()
        GROUP.remove()
        podman("image", "rm", images.tag("trixie"), check=False)
        settle()
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.rmtree(bundle.FOLDER, ignore_errors=True)
    print(
        "demo: the host, its image, its receipts and the release are gone.\n"
        "Kept: .venv, downloaded wheels (~/.cache/standfast) and the Debian packages that run containers."
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="script/demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clean", action="store_true", help="remove what the demonstration made")
    options = parser.parse_args()
    os.chdir(CHECKOUT)
    try:
        clean() if options.clean else demonstrate()
    except (DemoError, SandboxError, subprocess.CalledProcessError) as problem:
        print(f"demo: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped; the host stays as it is. script/demo --clean removes it.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
