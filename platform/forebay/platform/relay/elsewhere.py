"""How an attempt says that its request is to go to another engine."""

from forebay.platform.errors import ApiError


class TryElsewhere(Exception):  # noqa: N818 - not an error
    """This attempt failed before the tenant saw anything of it. `error` is what to answer if nobody else can;
    `suspicion` is held against the endpoint if somebody else can: until then the request itself may be at fault.
    `moved`: it did not fail, but was taken away from its engine."""

    def __init__(self, error: ApiError, suspicion: str = "", *, moved: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.suspicion = suspicion
        self.moved = moved


class CutOff(TryElsewhere):
    """It was cut after the tenant had seen a part of the answer. `Chain` knows that part, if it may go on."""
