"""Business work: intake, schedules, transcript, endings, reports and their delivery, and reading it all.

Everything that writes for a claim goes through the fence of ``standfast.authority``.
"""

from typing import TYPE_CHECKING

from standfast.lazy import lazily

if TYPE_CHECKING:
    from standfast.work.component import COMPONENT
    from standfast.work.delegation import (
        DELEGATION,
        RESEARCH,
        ChildLimits,
        ClosedChild,
        Delegated,
        DelegationPolicy,
        close_children,
        delegate,
        delegated,
    )
    from standfast.work.delivery import (
        Attempt,
        Channel,
        Declined,
        NotSent,
        Outbox,
        Resolved,
        deliver_pending,
        resolve_delivery,
        resume_deliveries,
    )
    from standfast.work.endings import (
        Canceled,
        Ending,
        Finished,
        cancel,
        cancel_within,
        finish,
        finish_and_claim,
    )
    from standfast.work.intake import (
        Admission,
        Limits,
        Request,
        admit,
        admit_within,
        foresee,
        refuse_rejected,
        refuse_reserved,
    )
    from standfast.work.interrupted import end_interrupted
    from standfast.work.reading import (
        Ages,
        Latest,
        WorkItem,
        ages,
        children_of,
        counts,
        latest_done,
        list_work,
        show_work,
    )
    from standfast.work.reports import Report, create_report, list_reports, show_report, uncertain_reports
    from standfast.work.runs import Run, keep_run, latest_run, show_run, start_run
    from standfast.work.schedules import (
        Fired,
        Schedule,
        Slot,
        add_schedule,
        fire_due,
        list_schedules,
        list_slots,
        remove_schedule,
    )
    from standfast.work.transcripts import TranscriptRow, observe, transcript

__all__ = [
    "COMPONENT",
    "DELEGATION",
    "RESEARCH",
    "Admission",
    "Ages",
    "Attempt",
    "Canceled",
    "Channel",
    "ChildLimits",
    "ClosedChild",
    "Declined",
    "Delegated",
    "DelegationPolicy",
    "Ending",
    "Finished",
    "Fired",
    "Latest",
    "Limits",
    "NotSent",
    "Outbox",
    "Report",
    "Request",
    "Resolved",
    "Run",
    "Schedule",
    "Slot",
    "TranscriptRow",
    "WorkItem",
    "add_schedule",
    "admit",
    "admit_within",
    "ages",
    "cancel",
    "cancel_within",
    "children_of",
    "close_children",
    "counts",
    "create_report",
    "delegate",
    "delegated",
    "deliver_pending",
    "end_interrupted",
    "finish",
    "finish_and_claim",
    "fire_due",
    "foresee",
    "keep_run",
    "latest_done",
    "latest_run",
    "list_reports",
    "list_schedules",
    "list_slots",
    "list_work",
    "observe",
    "refuse_rejected",
    "refuse_reserved",
    "remove_schedule",
    "resolve_delivery",
    "resume_deliveries",
    "show_report",
    "show_run",
    "show_work",
    "start_run",
    "transcript",
    "uncertain_reports",
]

__getattr__ = lazily(
    __name__,
    {
        "component": "COMPONENT",
        "delegation": (
            "DELEGATION RESEARCH ChildLimits ClosedChild Delegated DelegationPolicy close_children "
            "delegate delegated"
        ),
        "delivery": (
            "Attempt Channel Declined NotSent Outbox Resolved deliver_pending resolve_delivery "
            "resume_deliveries"
        ),
        "endings": "Canceled Ending Finished cancel cancel_within finish finish_and_claim",
        "intake": "Admission Limits Request admit admit_within foresee refuse_rejected refuse_reserved",
        "interrupted": "end_interrupted",
        "reading": "Ages Latest WorkItem ages children_of counts latest_done list_work show_work",
        "reports": "Report create_report list_reports show_report uncertain_reports",
        "runs": "Run keep_run latest_run show_run start_run",
        "schedules": "Fired Schedule Slot add_schedule fire_due list_schedules list_slots remove_schedule",
        "transcripts": "TranscriptRow observe transcript",
    },
)
