"""What each answer of a supplier proves: against the real process with its faults, and against a liar."""

import json
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from supplying import TOKEN, Supplier, epoch, order, supplier

from standfast.errors import ConfigurationInvalid, Refused
from standfast.orders import (
    Absent,
    Accepted,
    Declined,
    SupplierAccess,
    SupplierUnavailable,
    Unclear,
)
from standfast.orders import client as clients
from standfast.orders import http as over_http
from standfast.orders.http import HttpSupplier
from standfast.supplier.wire import OrderRequest, ReceiptPage


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supplier]:
    with supplier(tmp_path_factory.mktemp("supplier")) as made:
        yield made


@contextmanager
def client(
    url: str, token: str = TOKEN, transport: httpx.BaseTransport | None = None
) -> Iterator[HttpSupplier]:
    made = HttpSupplier(SupplierAccess(url, token), transport=transport)
    yield made
    made.close()


def asked(number: int) -> OrderRequest:
    return OrderRequest.model_validate(order(number))


def test_an_accepted_order_is_accepted_once(running: Supplier) -> None:
    with client(running.url) as account:
        first, again = account.submit(asked(0x101)), account.submit(asked(0x101))
        assert isinstance(first, Accepted)
        assert first == again == account.lookup(asked(0x101).operation_id)
        assert account.account().epoch == epoch(1)
        assert first.receipt in list(account.receipts())


@pytest.mark.parametrize(
    ("kind", "bought"), [("drop_after_accept", True), ("drop_before_accept", False), ("error", False)]
)
def test_a_fault_proves_nothing_and_the_lookup_tells(running: Supplier, kind: str, bought: bool) -> None:
    number = 0x200 + len(kind)
    with client(running.url) as account:
        running.fault(kind)
        assert isinstance(account.submit(asked(number)), Unclear)
        found = account.lookup(asked(number).operation_id)
        assert isinstance(found, Accepted if bought else Absent)


def test_a_slow_answer_is_unclear_and_its_order_may_still_be_bought(
    running: Supplier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_http, "READ_SECONDS", 0.2)
    with client(running.url) as account:
        running.fault("delay", seconds=0.6)
        assert isinstance(account.submit(asked(0x301)), Unclear)
    with client(running.url) as account:
        end = threading.Event()
        for _ in range(100):
            if isinstance(account.lookup(asked(0x301).operation_id), Accepted):
                end.set()
                break
            end.wait(0.05)
        assert end.is_set()


def test_a_refusal_is_final_and_another_epoch_declines_this_transmission_only(running: Supplier) -> None:
    with client(running.url) as account:
        running.fault("refuse")
        refused = account.submit(asked(0x401))
        assert isinstance(refused, Declined)
        assert refused.final
        assert account.submit(asked(0x401)) == refused
        stale = account.submit(OrderRequest.model_validate(order(0x402, epoch=epoch(9))))
        assert isinstance(stale, Declined)
        assert not stale.final


def test_other_bytes_under_one_operation_id_are_unclear(running: Supplier) -> None:
    with client(running.url) as account:
        account.submit(asked(0x501))
        other = account.submit(OrderRequest.model_validate(order(0x501, quantity=13)))
        assert isinstance(other, Unclear)
        assert "operation_conflict" in other.reason


def test_an_epoch_is_registered_once_and_never_taken_over(running: Supplier) -> None:
    with client(running.url) as account:
        assert account.register(epoch(1)).epoch == epoch(1)
        with pytest.raises(Refused) as told:
            account.register(epoch(2))
        assert told.value.code == "epoch_registered"


def test_a_wrong_token_is_no_answer_and_is_told_nowhere(running: Supplier) -> None:
    secret = "another-token-0123456789"
    with client(running.url, secret) as account:
        assert isinstance(account.submit(asked(0x601)), Unclear)
        assert isinstance(account.lookup(asked(0x601).operation_id), Unclear)
        with pytest.raises(SupplierUnavailable) as told:
            account.account()
    assert secret not in str(told.value)
    assert secret not in repr(SupplierAccess(running.url, secret))
    assert secret not in running.journal


def test_a_supplier_that_is_not_there_is_unclear() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with client(f"http://127.0.0.1:{taken.getsockname()[1]}") as account:
            assert isinstance(account.submit(asked(1)), Unclear)
            assert isinstance(account.lookup("0" * 24), Unclear)
            with pytest.raises(SupplierUnavailable):
                account.account()


@contextmanager
def answering(raw: bytes) -> Iterator[str]:
    """A server that answers every connection with the same bytes, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    try:
                        connection.sendall(raw)
                    except OSError:
                        continue

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def http(status: str, body: bytes, *headers: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "Connection: close"])
    return head.encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"not http at all\r\n\r\n",
        http("200 OK", b""),
        http("200 OK", b"{}"),
        http("200 OK", b"\xff\xfe"),
        http("201 Created", b'{"receipt_id": "r", "quantity": "12"}'),
        http("201 Created", b"[" * 100_000),
        http("200 OK", b"x" * (over_http.ANSWER_BYTES + 1)),
        b"HTTP/1.1 201 Created\r\nContent-Length: 500\r\n\r\n{",
        http("302 Found", b"", "Location: http://127.0.0.1:9/orders"),
        http("422 Unprocessable", b"refused"),
        http("422 Unprocessable", b'{"error": "malformed", "reason": "no"}'),
        http("404 Not Found", b"<html>a proxy</html>"),
        http("404 Not Found", b'{"error": "unknown_path", "reason": "no"}'),
        http("409 Conflict", b'{"error": "key_expired", "reason": "old"}'),
        http("500 Internal", b'{"error": "refused", "reason": "no"}'),
        http("200 OK", b"x", "Content-Encoding: gzip"),
    ],
    ids=range(17),
)
def test_a_malformed_answer_proves_nothing(raw: bytes) -> None:
    with answering(raw) as url, client(url) as account:
        assert isinstance(account.submit(asked(1)), Unclear)
        assert isinstance(account.lookup("0" * 24), Unclear)
        with pytest.raises(SupplierUnavailable):
            account.account()
        with pytest.raises(SupplierUnavailable):
            list(account.receipts())


def test_the_proxy_and_netrc_of_the_environment_are_not_used(
    running: Supplier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with client(running.url) as account:
        assert account.account().epoch == epoch(1)


def test_pages_that_do_not_go_on_end() -> None:
    page = httpx.Response(200, json={"receipts": [], "next": 0})
    transport = httpx.MockTransport(lambda _request: page)
    with client("http://x", transport=transport) as account, pytest.raises(SupplierUnavailable):
        list(account.receipts())


@pytest.mark.parametrize(
    ("url", "token", "named"),
    [
        ("http://s", "", "TOKEN"),
        ("", "t", "URL"),
        ("ftp://s", "t", "URL"),
        ("http://", "t", "URL"),
        ("http://u:p@s", "t", "URL"),
        ("http://s/?q=1", "t", "URL"),
        ("http://s:99999", "t", "URL"),
        ("http://s", "two words", "TOKEN"),
        ("http://s", "nön-ascii", "TOKEN"),
        ("http://s", "line\nbreak", "TOKEN"),
    ],
)
def test_half_or_unusable_access_is_refused_by_name_and_without_its_value(
    url: str, token: str, named: str
) -> None:
    with pytest.raises(ConfigurationInvalid) as told:
        SupplierAccess.from_environment({clients.URL: url, clients.TOKEN: token})
    assert str(told.value).startswith(f"STANDFAST_SUPPLIER_{named}: ")
    for value in (token, "u:p"):
        assert not value or len(value) < 2 or value not in str(told.value)


def test_no_access_is_a_normal_condition() -> None:
    assert SupplierAccess.from_environment({}) is None


@pytest.mark.parametrize("module", ["standfast.orders", "standfast.operations.health", "standfast.serve"])
def test_httpx_is_imported_only_when_it_is_used(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'httpx', 'standfast.supplier.wire'}} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=False).returncode
        == 0
    )


def test_a_client_does_not_bring_the_command_line_of_httpx() -> None:
    code = (
        "import sys; from standfast.orders import HttpSupplier, SupplierAccess\n"
        "HttpSupplier(SupplierAccess('http://supplier.test', 'token'))\n"
        "sys.exit(bool({'rich', 'pygments', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=False)
    assert done.returncode == 0


def test_receipts_are_light_for_ten_thousand_are_held_at_once(running: Supplier) -> None:
    with client(running.url) as account:
        account.submit(asked(0x601))
        known = next(account.receipts()).model_dump()
    many = [
        known | {"sequence": n, "receipt_id": f"{n:024x}", "operation_id": f"{n:024x}"} for n in range(500)
    ]
    page = json.dumps({"receipts": many, "next": None})
    tracemalloc.start()
    try:
        found = ReceiptPage.model_validate_json(page).receipts
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / len(found) < 1100
