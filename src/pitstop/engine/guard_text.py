"""The guard's text, written for it: English prose, Python and Chinese, some 300 tokens each."""

from __future__ import annotations

LIMIT = 0.01
"""Mean KL divergence in nats that passes: about as much as 1 % of perplexity."""

ENGLISH = """\
The lighthouse keeper of Skerry Point kept two books. In the first, by order of the harbour board, he wrote the wind, the pressure and the
names of ships that passed before dark. In the second he wrote what he thought about while he waited for the lamp to warm. On the 14th of
March 1887 the first book says only: north-west, 29.4 inches, the brig Amaranth at noon, nothing after. The second runs to four pages. He
had read that light takes more than eight minutes to come from the sun, and it troubled him. If the sun went out, he wrote, I should trim
my lamp as on every other evening and not know that I was the brightest thing for ninety million miles. His daughter, who was eleven, asked
how anyone had measured such a thing, and he did not know. So they tried with a bell. She rang it on the far side of the bay and raised a
white cloth as she did; he counted heartbeats between the cloth and the sound, and from the chart they took the distance, one mile and a
quarter. Six beats. They did it again in the rain, and against the wind, and wrote the numbers in two columns. The mean came out within a
twentieth of the figure in the encyclopaedia. She wanted to know why it was not exact. Because my heart is not a clock, he told her, and
because you were tired by the end; but see, the error is on both sides of the truth, and so we were honest.
"""

CODE = '''\
from __future__ import annotations

LIMIT = 0.01
"""Mean KL divergence in nats that passes: about as much as 1 % of perplexity."""

import heapq
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(order=True)
class Visit:
    distance: float
    node: str = field(compare=False)


class RoadMap:
    """Towns and the roads between them; lengths in kilometres."""

    def __init__(self, roads: list[tuple[str, str, float]]) -> None:
        self._roads: dict[str, dict[str, float]] = defaultdict(dict)
        for start, end, length in roads:
            if length < 0:
                raise ValueError(f"the road from {start} to {end} has length {length}")
            self._roads[start][end] = self._roads[end][start] = length

    def shortest(self, start: str, goal: str) -> tuple[float, list[str]]:
        """The least distance and the towns on the way; KeyError when there is none."""
        best, before = {start: 0.0}, {}
        queue = [Visit(0.0, start)]
        while queue:
            here = heapq.heappop(queue)
            if here.node == goal:
                path = [goal]
                while path[-1] != start:
                    path.append(before[path[-1]])
                return here.distance, path[::-1]
            for town, length in self._roads[here.node].items():
                distance = here.distance + length
                if distance < best.get(town, float("inf")):
                    best[town], before[town] = distance, here.node
                    heapq.heappush(queue, Visit(distance, town))
        raise KeyError(goal)
'''

CHINESE = """\
村口的老槐树下有一口井，井水冬暖夏凉。外婆说，她小时候每天清早都要来这里挑水，来回三趟，一共六桶，少一桶母亲就会发现。后来装了自来水，
井便慢慢没人用了，只有夏天，孩子们把西瓜放进篮子里，用绳子吊到水面上，下午再拉上来，切开时整个院子都是凉气。去年大旱，水库见了底，
自来水一天只供两个小时，大家又想起了这口井。村里请人来清淤，挖出了十几个铜钱、一只断了柄的铁勺，还有一块刻着字的青石，上面写着
“光绪十二年五月，全村出工四十二人，深三丈”。老师把它抄在黑板上，问学生：一丈大约是三点三米，那么这口井有多深？
"""
