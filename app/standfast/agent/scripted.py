"""A model that says what it was told to say: for tests, demonstrations and drills."""

from collections.abc import Callable, Iterable

from standfast.agent.model import ModelFailed, Reply, Request


class ScriptedModel:
    """Plays a list of turns. A turn is a Reply, or a function of the request that returns one.

    It keeps the requests that it was sent in ``requests``, and fails once its turns are used up.
    """

    source = "scripted"

    def __init__(self, turns: Iterable[Reply | Callable[[Request], Reply]]) -> None:
        self._turns = iter(turns)
        self.requests: list[Request] = []

    def reply(self, request: Request) -> Reply:
        """The next turn."""
        self.requests.append(request)
        turn = next(self._turns, None)
        if turn is None:
            raise ModelFailed("the script has no turn left")
        return turn if isinstance(turn, Reply) else turn(request)
