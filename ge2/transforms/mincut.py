"""The cheapest cut of a network: Dinic's algorithm, as in Dinitz (1970), on Python integers.

A flow is sent along shortest paths, all of one length at a time, until no path is left; what then
can still reach the sink lies behind the cut.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

NEVER: Final = 1 << 200  # the capacity of what must not be cut


@final
class Network:
    """Nodes are numbered from 0, the source; 1 is the sink."""

    __slots__ = ("edges", "room", "to")

    def __init__(self) -> None:
        self.to: list[int] = []  # of each edge; the next one, of odd number, is its way back
        self.room: list[int] = []
        self.edges: list[list[int]] = [[], []]  # of each node

    def node(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def join(self, a: int, b: int, capacity: int) -> None:
        """An edge from `a` to `b`."""
        if capacity <= 0:
            return
        for start, end, room in ((a, b, capacity), (b, a, 0)):
            self.edges[start].append(len(self.to))
            self.to.append(end)
            self.room.append(room)

    def cut(self) -> tuple[int, frozenset[int]]:
        """The least total capacity that parts the sink from the source, and the
        nodes on the sink's side.
        """
        total = 0
        while (level := self.levels()) is not None:
            total += self.blocked(level)
        return total, self.behind()

    def levels(self) -> list[int] | None:
        """How far each node is from the source; None if the sink is out of reach."""
        found = [-1] * len(self.edges)
        found[0] = 0
        waiting = deque([0])
        while waiting:
            node = waiting.popleft()
            for edge in self.edges[node]:
                if self.room[edge] and found[self.to[edge]] < 0:
                    found[self.to[edge]] = found[node] + 1
                    waiting.append(self.to[edge])
        return found if found[1] >= 0 else None

    def blocked(self, level: list[int]) -> int:
        """Sends all that goes along shortest paths; how much that was."""
        total, path = 0, list[int]()
        tried = [0] * len(self.edges)  # how many of the edges of each node lead nowhere any more
        node = 0
        while True:
            if node == 1:
                total += self.sent(path)
                path.clear()
                node = 0
            edges, at = self.edges[node], tried[node]
            while at < len(edges) and not self.goes_on(edges[at], level[node] + 1, level):
                at += 1
            tried[node] = at
            if at < len(edges):
                path.append(edges[at])
                node = self.to[edges[at]]
            elif node == 0:
                return total
            else:
                level[node] = -1  # a dead end
                node = self.to[path.pop() ^ 1]

    def goes_on(self, edge: int, wanted: int, level: list[int]) -> bool:
        return self.room[edge] > 0 and level[self.to[edge]] == wanted

    def sent(self, path: list[int]) -> int:
        amount = min(self.room[edge] for edge in path)
        for edge in path:
            self.room[edge] -= amount
            self.room[edge ^ 1] += amount
        return amount

    def behind(self) -> frozenset[int]:
        """The nodes from which the sink can be reached still."""
        found, waiting = {1}, [1]
        while waiting:
            for edge in self.edges[waiting.pop()]:
                before = self.to[edge]
                if self.room[edge ^ 1] and before not in found:
                    found.add(before)
                    waiting.append(before)
        return frozenset(found)
