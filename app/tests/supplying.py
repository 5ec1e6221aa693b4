"""A real supplier process on loopback, and real requests to it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

TOKEN = "a-token-for-tests-0123456789"
PATIENCE = 20.0
"""Seconds to wait for a process on a busy machine; nothing is timed."""


def epoch(number: int) -> str:
    return f"{number:032x}"


def order(operation: int = 1, **changed: Any) -> dict[str, Any]:
    """A well-formed order of epoch 1."""
    return {
        "operation_id": f"{operation:024x}",
        "epoch": epoch(1),
        "target": "supplier",
        "sku": "oat-milk",
        "quantity": 12,
        "unit_cost_cents": 150,
        "currency": "EUR",
        "digest": "d" * 64,
    } | changed


@dataclass
class Supplier:
    """One supplier: its folder outlives its processes."""

    folder: Path
    options: tuple[str, ...] = ("--faults",)
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    url: str = ""

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    @property
    def journal(self) -> str:
        """Everything that any of its processes has written."""
        return (self.folder / "journal").read_text()

    def start(self) -> None:
        """Start a process and wait until it listens."""
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(TOKEN + "\n")
        before = len(self.journal) if (self.folder / "journal").exists() else 0
        with (self.folder / "journal").open("ab") as journal:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-m", "standfast", "--json", "supplier", "serve"),
                    *("--ledger", str(self.ledger), "--token-file", str(self.token_file)),
                    *("--port", "0", *self.options),
                ],
                stdout=subprocess.PIPE,
                stderr=journal,
                env={"PATH": os.environ["PATH"]} | self.environment,
            )
        until = time.monotonic() + PATIENCE
        while not (said := re.search(r"listens on (\S+)\n", self.journal[before:])):
            assert self.process.poll() is None, self.journal
            assert time.monotonic() < until, self.journal
            time.sleep(0.02)
        self.url = said[1]

    def stop(self, number: int = signal.SIGTERM) -> dict[str, Any] | None:
        """End the process; what it says of itself, unless it was killed."""
        assert self.process is not None
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=PATIENCE)
        if number == signal.SIGKILL:
            assert self.process.returncode == -signal.SIGKILL
            return None
        assert self.process.returncode == 0, self.journal
        found: dict[str, Any] = json.loads(out)
        return found

    def client(self, timeout: float = PATIENCE) -> httpx.Client:
        """A client that bears the token. One for each thread."""
        return httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=timeout, trust_env=False
        )

    def fault(self, kind: str, **more: Any) -> None:
        """Turn a fault switch on."""
        with self.client() as client:
            assert client.post("/faults", json={"kind": kind} | more).status_code == 200

    def receipts(self) -> list[dict[str, Any]]:
        """The full export, three to a page."""
        found: list[dict[str, Any]] = []
        after: int | None = 0
        with self.client() as client:
            while after is not None:
                page = client.get("/receipts", params={"after": after, "limit": 3}).json()
                found += page["receipts"]
                after = page["next"]
        return found

    def taken_over_by(self, epoch: str) -> dict[str, str]:
        """Give the account to an epoch; the environment in which a service buys there."""
        with self.client() as client:
            body = {"epoch": epoch, "replaces": client.get("/account").json()["epoch"]}
            assert client.post("/account/epoch", json=body).status_code == 200
        return {"STANDFAST_SUPPLIER_URL": self.url, "STANDFAST_SUPPLIER_TOKEN": TOKEN}

    def register(self, number: int = 1, replaces: int | None = None) -> httpx.Response:
        """Register an epoch."""
        with self.client() as client:
            body = {"epoch": epoch(number), "replaces": None if replaces is None else epoch(replaces)}
            return client.post("/account/epoch", json=body)


@contextmanager
def supplier(folder: Path, *options: str, **environment: str) -> Iterator[Supplier]:
    """A running supplier below `folder`, with fault switches and epoch 1."""
    made = Supplier(folder, ("--faults", *options), environment)
    made.start()
    try:
        assert made.register().status_code == 200
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.process.kill()
            made.process.communicate()
