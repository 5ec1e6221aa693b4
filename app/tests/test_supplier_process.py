"""The supplier as its clients meet it: a process on loopback, killed and restarted, failing on demand."""

import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from supplying import PATIENCE, TOKEN, Supplier, epoch, order, supplier

from standfast.supplier.wire import Account, Answer, SupplierReceipt


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Supplier]:
    with supplier(tmp_path) as made:
        yield made


def post(made: Supplier, body: dict[str, Any]) -> httpx.Response:
    with made.client() as client:
        return client.post("/orders", json=body)


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, Answer.model_validate_json(response.content).error


def eventually[Found](look: Callable[[], Found | None]) -> Found:
    until = time.monotonic() + PATIENCE
    while (found := look()) is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def test_an_order_is_accepted_found_again_and_exported(running: Supplier) -> None:
    first = post(running, order())
    receipt = SupplierReceipt.model_validate_json(first.content)
    assert first.status_code == 201
    assert receipt.model_dump(include=set(order())) == order()
    again = post(running, order())
    assert (again.status_code, again.json()) == (200, first.json())
    with running.client() as client:
        assert client.get(f"/orders/{receipt.operation_id}").json() == first.json()
        account = Account.model_validate_json(client.get("/account").content)
    assert (account.epoch, account.accepted, account.key_window_seconds) == (epoch(1), 1, 86_400)
    assert running.receipts() == [first.json()]


def test_the_refusals_have_their_status(running: Supplier) -> None:
    post(running, order())
    assert error(post(running, order(sku="tea"))) == (409, "operation_conflict")
    assert error(running.register(2)) == (409, "epoch_registered")
    assert running.register(2, 1).json()["epoch"] == epoch(2)
    assert error(running.register(1, 2)) == (409, "epoch_retired")
    assert error(post(running, order(2))) == (409, "stale_epoch")
    with running.client() as client:
        assert error(client.get("/orders/0123456789ab")) == (404, "unknown_operation")
        assert error(client.get("/elsewhere")) == (404, "unknown_path")
        wrong = client.get("/orders")
        assert (error(wrong), wrong.headers["allow"]) == ((405, "not_allowed"), "POST")
    assert len(running.receipts()) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"epoch":',
        b"\xff\xfe",
        *(
            httpx.Request("POST", "http://x", json=body).read()
            for body in (
                order(quantity=0),
                order(quantity=1001),
                order(quantity="12"),
                order(quantity=1.5),
                order(quantity=True),
                order(unit_cost_cents=-1),
                order(operation_id="../ledger"),
                order(operation_id="A" * 24),
                order(epoch=epoch(1) + "\n"),
                order(currency="eur"),
                order(digest="d" * 63),
                order(target=""),
                order(sku="tea\x00"),
                order(price=1),
                {name: value for name, value in order().items() if name != "digest"},
            )
        ),
    ],
)
def test_a_malformed_order_is_told_by_field_and_does_nothing(shared: Supplier, content: bytes) -> None:
    with shared.client() as client:
        assert error(client.post("/orders", content=content)) == (400, "malformed")
        assert client.get("/account").json()["accepted"] == 0


@pytest.mark.parametrize(
    "query", ["after=-1", "after=x", "limit=0", "limit=501", f"after={'9' * 30}", "page=2"]
)
def test_a_malformed_page_is_refused(shared: Supplier, query: str) -> None:
    with shared.client() as client:
        assert error(client.get(f"/receipts?{query}")) == (400, "malformed")


def test_a_body_has_a_bound(shared: Supplier) -> None:
    with shared.client() as client:
        assert error(client.post("/orders", content=b" " * 70_000)) == (413, "too_large")
        assert client.get("/account").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", TOKEN)],
        [("Authorization", f"Bearer {TOKEN}x")],
        [("Authorization", f"Bearer {TOKEN[:-1]}")],
        [("Authorization", "Bearer x")],
        [("Authorization", f"Digest {TOKEN}")],
        [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer other")],
        [("X-Token", TOKEN)],
    ],
)
def test_nothing_is_told_without_the_token(shared: Supplier, headers: list[tuple[str, str]]) -> None:
    with httpx.Client(base_url=shared.url, headers=headers, trust_env=False) as client:
        for method, path in (
            ("GET", "/account"),
            ("POST", "/account/epoch"),
            ("POST", "/orders"),
            ("GET", "/receipts"),
            ("POST", "/faults"),
            ("GET", "/elsewhere"),
        ):
            assert error(client.request(method, path)) == (401, "unauthorized")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supplier]:
    """One supplier for the tests that must leave it as it is."""
    with supplier(tmp_path_factory.mktemp("shared")) as made:
        yield made
        made.stop()
        assert "Traceback" not in made.journal


def test_the_token_is_written_nowhere(running: Supplier) -> None:
    post(running, order())
    post(running, order(sku="tea"))
    httpx.get(f"{running.url}/{TOKEN}", headers={"Authorization": TOKEN}, trust_env=False)
    running.stop()
    written = [path for path in running.folder.rglob("*") if path.is_file() and path != running.token_file]
    assert running.folder / "journal" in written
    assert all(TOKEN.encode() not in path.read_bytes() for path in written)


def test_one_operation_sent_by_eight_clients_makes_one_receipt(running: Supplier) -> None:
    together = threading.Barrier(8)

    def send(_: int) -> httpx.Response:
        with running.client() as client:
            client.get("/account")
            together.wait()
            return client.post("/orders", json=order())

    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(send, range(8)))
        assert {answer.status_code for answer in answers} <= {200, 201}
        assert len({answer.content for answer in answers}) == 1
    assert len(running.receipts()) == 1


def test_different_bytes_sent_together_make_one_receipt_and_conflicts(running: Supplier) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: post(running, order(quantity=number + 1)), range(8)))
    assert sorted(answer.status_code for answer in answers) == [201, *[409] * 7]
    assert len(running.receipts()) == 1


def test_two_processes_may_share_a_ledger(running: Supplier, tmp_path: Path) -> None:
    other = Supplier(tmp_path)
    other.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            sent = [
                pool.submit(post, made, order(number)) for number in range(10) for made in (running, other)
            ]
            codes = sorted(each.result().status_code for each in sent)
        assert codes == [200] * 10 + [201] * 10
        assert other.receipts() == running.receipts()
        assert len(running.receipts()) == 10
    finally:
        other.stop()


def test_of_two_clients_that_replace_an_epoch_one_wins(running: Supplier) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: running.register(number, 1), range(2, 6)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]


def test_what_was_answered_is_there_after_a_kill(running: Supplier) -> None:
    answered: list[dict[str, Any]] = []
    enough = threading.Event()

    def send(start: int) -> None:
        with running.client() as client:
            for number in range(start, start + 5_000):
                try:
                    answer = client.post("/orders", json=order(number))
                except httpx.TransportError:
                    return
                answered.append(answer.json())
                if len(answered) >= 40:
                    enough.set()

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(send, 10_000 * number) for number in range(4)]
        assert enough.wait(PATIENCE)
        running.stop(signal.SIGKILL)
        for each in done:
            each.result()
    running.start()
    exported = running.receipts()
    assert [receipt["sequence"] for receipt in exported] == list(range(1, len(exported) + 1))
    by_sequence = {receipt["sequence"]: receipt for receipt in exported}
    assert len(answered) >= 40
    assert all(by_sequence[receipt["sequence"]] == receipt for receipt in answered)


def test_a_kill_after_accepting_leaves_the_receipt(running: Supplier) -> None:
    running.fault("drop_after_accept")
    with pytest.raises(httpx.TransportError):
        post(running, order())
    running.stop(signal.SIGKILL)
    running.start()
    with running.client() as client:
        receipt = client.get(f"/orders/{order()['operation_id']}").json()
        assert client.get("/account").json()["epoch"] == epoch(1)
    assert running.receipts() == [receipt]
    again = post(running, order())
    assert (again.status_code, again.json()) == (200, receipt)


def test_a_fault_drops_before_anything_is_done(running: Supplier) -> None:
    running.fault("drop_before_accept", times=2)
    for _ in range(2):
        with pytest.raises(httpx.TransportError):
            post(running, order())
    assert running.receipts() == []
    assert post(running, order()).status_code == 201


def test_a_fault_fails_and_does_nothing(running: Supplier) -> None:
    running.fault("error")
    assert error(post(running, order())) == (500, "failed")
    assert post(running, order()).status_code == 201


def test_a_fault_refuses_for_ever(running: Supplier) -> None:
    running.fault("refuse")
    refused = post(running, order())
    assert error(refused) == (422, "refused")
    running.stop(signal.SIGKILL)
    running.start()
    assert post(running, order()).content == refused.content
    assert post(running, order(2)).status_code == 201


def test_a_delayed_order_is_accepted_after_its_client_gave_up(running: Supplier) -> None:
    running.fault("delay", seconds=1.5)
    with running.client(timeout=0.3) as impatient, pytest.raises(httpx.TimeoutException):
        impatient.post("/orders", json=order())
    with running.client() as client:
        path = f"/orders/{order()['operation_id']}"
        assert client.get(path).status_code == 404  # and proves nothing
        found = eventually(lambda: answer.json() if (answer := client.get(path)).is_success else None)
    assert running.receipts() == [found]


@pytest.mark.parametrize("endpoint", ["account", "epoch", "lookup", "receipts"])
def test_every_endpoint_can_fail(running: Supplier, endpoint: str) -> None:
    method, path, body = {
        "account": ("GET", "/account", None),
        "epoch": ("POST", "/account/epoch", {"epoch": epoch(1)}),
        "lookup": ("GET", f"/orders/{order()['operation_id']}", None),
        "receipts": ("GET", "/receipts", None),
    }[endpoint]
    assert post(running, order()).status_code == 201
    with running.client() as client:
        running.fault("error", on=endpoint)
        assert error(client.request(method, path, json=body)) == (500, "failed")
        for kind in ("drop_before_accept", "drop_after_accept"):
            running.fault(kind, on=endpoint)
            with pytest.raises(httpx.TransportError):
                client.request(method, path, json=body)
        assert client.request(method, path, json=body).status_code == 200


def test_a_fault_can_be_taken_back_and_must_make_sense(running: Supplier) -> None:
    running.fault("error", times=5)
    running.fault("error", times=0)
    assert post(running, order()).status_code == 201
    with running.client() as client:
        for body in (
            {"kind": "refuse", "on": "account"},
            {"kind": "explode"},
            {"kind": "delay", "seconds": -1},
        ):
            assert error(client.post("/faults", json=body)) == (400, "malformed")


def test_there_are_no_faults_unless_asked_for(tmp_path: Path) -> None:
    made = Supplier(tmp_path, options=())
    made.start()
    with made.client() as client:
        assert error(client.post("/faults", json={"kind": "error"})) == (404, "unknown_path")
    assert "fault" not in made.journal
    made.stop()


def test_the_key_window_is_stated(tmp_path: Path) -> None:
    with supplier(tmp_path, "--key-window", "1") as made:
        first = post(made, order())
        with made.client() as client:
            assert client.get("/account").json()["key_window_seconds"] == 1
            time.sleep(1.2)
            assert error(client.post("/orders", json=order())) == (409, "key_expired")
            assert client.get(f"/orders/{order()['operation_id']}").json() == first.json()


def test_sigterm_lets_open_requests_end(running: Supplier) -> None:
    running.fault("delay", seconds=1.0)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(post, running, order())
        eventually(lambda: "fault delay\n" in running.journal or None)
        result = running.stop()
        assert sent.result().status_code == 201
    assert result is not None
    assert result == {
        "changed": True,
        "check": False,
        "address": running.url,
        "account": result["account"],
        "accepted": 1,
    }
    with pytest.raises(httpx.ConnectError):
        post(running, order())


def test_idle_connections_do_not_hold_up_a_stop(running: Supplier) -> None:
    address = httpx.URL(running.url)
    with socket.create_connection((address.host, address.port or 0)), running.client() as client:
        client.get("/account")
        began = time.monotonic()
        assert running.stop(signal.SIGINT) is not None
        assert time.monotonic() - began < 8


def test_systemd_hears_ready_and_stopping(tmp_path: Path) -> None:
    address = f"standfast-test-{time.time_ns()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("\0" + address)
        heard.settimeout(PATIENCE)
        with supplier(tmp_path, NOTIFY_SOCKET=f"@{address}") as made:
            assert heard.recv(500).decode() == f"STATUS=listens on {made.url}"
            assert heard.recv(500) == b"READY=1"
            made.stop()
            assert heard.recv(500) == b"STOPPING=1"


def test_the_journal_says_what_happened_to_each_order(running: Supplier) -> None:
    post(running, order())
    post(running, order())
    post(running, order(sku="tea"))
    said = re.findall(r"^order 0*1: (.*)$", running.journal, re.MULTILINE)
    assert said == ["accepted 1", "known 1", "operation_conflict"]
