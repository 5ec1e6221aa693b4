"""The published models: every object that `--json` prints or a command reads, by name.

Names only, so that asking for one schema does not import the whole package.
"""

from importlib import import_module
from typing import cast

from pydantic import BaseModel

PUBLISHED: dict[str, str] = {
    "abandoned": "standfast.operations.upgrade.abandoning:Abandoned",
    "account-inspected": "standfast.operations.recovery.inspecting:Inspected",
    "adopted": "standfast.operations.adopting:Adopted",
    "backup-created": "standfast.operations.backup.creating:Created",
    "backup-list": "standfast.operations.backup.listing:BackupList",
    "backup-manifest": "standfast.operations.backup.manifest:BackupManifest",
    "backup-migrated": "standfast.operations.backup.migrating:MigratedBackup",
    "backup-pruned": "standfast.operations.backup.retention:Pruned",
    "backup-rehearsal": "standfast.operations.backup.rehearsing:Rehearsal",
    "backup-sent": "standfast.operations.backup.sending:Sent",
    "backup-verification": "standfast.operations.backup.verifying:Verification",
    "canary": "standfast.operations.canary:CanaryResult",
    "channel": "standfast.cli.channel:ChannelShown",
    "env-change": "standfast.operations.environment:EnvironmentChange",
    "env-check": "standfast.operations.environment:EnvironmentCheck",
    "env-compare": "standfast.operations.environment:EnvironmentComparison",
    "facts": "standfast.operations.upgrade.facts:Facts",
    "failure": "standfast.cli.common:Failure",
    "health": "standfast.operations.health:Health",
    "init": "standfast.operations.initialise:Initialised",
    "order": "standfast.cli.order:OrderShown",
    "order-approved": "standfast.cli.order:OrderApproved",
    "order-delivered": "standfast.cli.order:OrderDelivered",
    "order-list": "standfast.cli.order:OrderList",
    "order-resolved": "standfast.cli.order:OrderResolved",
    "order-revoked": "standfast.cli.order:OrderRevoked",
    "order-sent": "standfast.cli.order:OrderSent",
    "preflight": "standfast.operations.preflight.result:Preflight",
    "receipt": "standfast.receipts.model:Receipt",
    "receipt-draft": "standfast.receipts.model:Draft",
    "receipt-list": "standfast.receipts.model:ReceiptList",
    "receipt-recorded": "standfast.receipts.model:Recorded",
    "receipt-verification": "standfast.receipts.model:Verification",
    "recovered": "standfast.operations.recovery.applying:Recovered",
    "recovery-plan": "standfast.operations.recovery.plan:Plan",
    "recovery-plan-edited": "standfast.operations.recovery.questions:Edited",
    "release-build": "standfast.release.build:BuildResult",
    "release-list": "standfast.operations.kept:KeptList",
    "release-manifest": "standfast.release.manifest:Manifest",
    "release-seal": "standfast.release.seal:SealResult",
    "release-verification": "standfast.release.verify:ReleaseVerification",
    "report": "standfast.cli.report:ReportEntry",
    "report-list": "standfast.cli.report:ReportList",
    "report-resolved": "standfast.cli.report:ReportResolved",
    "restored": "standfast.operations.restore.restoring:RestoreResult",
    "schedule-added": "standfast.cli.schedule:ScheduleAdded",
    "schedule-list": "standfast.cli.schedule:ScheduleList",
    "schedule-removed": "standfast.cli.schedule:ScheduleRemoved",
    "serve": "standfast.cli.serve:ServeResult",
    "skill": "standfast.cli.skill:SkillText",
    "skill-history": "standfast.cli.skill:SkillHistory",
    "skill-set": "standfast.cli.skill:SkillSet",
    "stock-adjusted": "standfast.cli.stock:StockAdjusted",
    "stock-list": "standfast.cli.stock:StockList",
    "supplier-account": "standfast.supplier.wire:Account",
    "supplier-receipt": "standfast.supplier.wire:SupplierReceipt",
    "supplier-served": "standfast.supplier.settings:SupplierServed",
    "switch": "standfast.operations.upgrade.result:Switch",
    "unit": "standfast.operations.unit:UnitText",
    "upgrade-journal": "standfast.operations.upgrade.journal:Journal",
    "usage": "standfast.operations.usage:UsageShown",
    "usage-loss-stated": "standfast.cli.usage:UsageLossStated",
    "version": "standfast.cli.main:Version",
    "work": "standfast.cli.work:WorkShown",
    "work-added": "standfast.cli.work:WorkAdded",
    "work-canceled": "standfast.cli.work:WorkCanceled",
    "work-list": "standfast.cli.work:WorkList",
}
"""Schema name -> `module:Class`. Whoever owns a model adds its line, in alphabetical order."""


def load(name: str) -> type[BaseModel]:
    """The published model of that name; KeyError when there is none."""
    module, _, attribute = PUBLISHED[name].partition(":")
    return cast("type[BaseModel]", getattr(import_module(module), attribute))
