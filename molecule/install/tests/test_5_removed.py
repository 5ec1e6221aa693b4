"""The page's way back: the service is gone, the records stay."""

from evidence import copies, receipts


def test_the_rollback_of_the_page(installed, page, controller):
    page.run("Rollback")
    assert [r["operation"] for r in receipts(installed).values()] == ["install", "uninstall"]
    assert len(copies(controller.folder / "receipts/agent")) == 2
    for gone in (
        "/usr/local/bin/lucy-agent",
        "/home/lucy/.config/systemd/user/lucy-agent.service",
        "/srv/lucy/releases",
        "/srv/lucy/current",
        "/var/lib/systemd/linger/lucy",
    ):
        assert not installed.testinfra.file(gone).exists, gone
    for kept in ("agent.sqlite", "agent.authority", "agent.env", "shop.toml"):
        assert installed.testinfra.file(f"/srv/lucy/state/{kept}").exists
    assert installed.testinfra.user("lucy").exists
