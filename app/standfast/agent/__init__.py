"""The bounded loop: tools behind a gate, and models behind one small interface."""

from typing import TYPE_CHECKING

from standfast.lazy import lazily

if TYPE_CHECKING:
    from standfast.agent.loop import Limits, LoopResult, Status, run_loop
    from standfast.agent.model import Model, ModelFailed, Reply, Request, ToolCall, Usage
    from standfast.agent.offline import Conversation, OfflinePlanner
    from standfast.agent.scripted import ScriptedModel
    from standfast.agent.tools import Arguments, Decision, Dispatcher, NoArguments, Outcome, Tool, tool

__all__ = [
    "Arguments",
    "Conversation",
    "Decision",
    "Dispatcher",
    "Limits",
    "LoopResult",
    "Model",
    "ModelFailed",
    "NoArguments",
    "OfflinePlanner",
    "Outcome",
    "Reply",
    "Request",
    "ScriptedModel",
    "Status",
    "Tool",
    "ToolCall",
    "Usage",
    "run_loop",
    "tool",
]

__getattr__ = lazily(
    __name__,
    {
        "loop": "Limits LoopResult Status run_loop",
        "model": "Model ModelFailed Reply Request ToolCall Usage",
        "offline": "Conversation OfflinePlanner",
        "scripted": "ScriptedModel",
        "tools": "Arguments Decision Dispatcher NoArguments Outcome Tool tool",
    },
)
