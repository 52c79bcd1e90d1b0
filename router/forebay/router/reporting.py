"""When a front door tells others what it has booked (pure): who carries the reports asks here, in virtual time too.

A report goes out when something has changed and somebody is there, at most every `TELL_EVERY_S`, and once in
`HEARTBEAT_S` all the same.
"""

import math

from forebay.router.peers import Entry, Peers, Refusal, Report

TELL_EVERY_S = 0.025
FOR_EACH_PEER_S = 0.003  # at least, so that hearing all of them stays a small part of a core however many they are
ALONE_S = 0.25
HEARTBEAT_S = 1.0


class Reporter:
    """Of one life of one process, `replica`."""

    def __init__(self, peers: Peers, replica: str) -> None:
        self.replica = replica
        self.due = -math.inf  # when to tell, whether or not anything has changed
        self._peers = peers
        self._number = 0
        self._told: list[Entry] | None = None

    @property
    def pause_s(self) -> float:
        """Until `report` is to be asked for again."""
        peers = len(self._peers)
        return max(TELL_EVERY_S, FOR_EACH_PEER_S * peers) if peers else ALONE_S

    def report(self, now: float) -> Report | None:
        """What to tell, if anything is to be told now."""
        if now < self.due and not len(self._peers):
            return None
        entries = self._peers.own()
        if now < self.due and entries == self._told:
            return None
        self._number += 1
        self._told, self.due = entries, now + HEARTBEAT_S
        steps = self._peers.steps()  # those that nobody was there to hear are old when somebody is
        return Report(self.replica, self._number, entries, steps if len(self._peers) else {})

    def hear(self, report: Report, now: float) -> Refusal | None:
        """Take a peer's report. A newcomer shall not wait to hear of us."""
        known = len(self._peers)
        refusal = self._peers.hear(report, now)
        if len(self._peers) > known:
            self.again()
        return refusal

    def again(self) -> None:
        """What was told may not have been heard."""
        self.due = -math.inf
