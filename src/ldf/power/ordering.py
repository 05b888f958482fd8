"""The order in which buses are eliminated, and the pattern of the factorisation: found once per topology."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def eliminated(buses: int, source: Ints, target: Ints) -> tuple[Ints, Ints, Ints]:
    """Minimum-degree order of the buses, and the pattern of the factorisation: first block and row of each block."""
    near: list[set[int]] = [set() for _ in range(buses)]
    for i, j in zip(source.tolist(), target.tolist(), strict=True):
        near[i].add(j)
        near[j].add(i)
    heap = [(len(others), i) for i, others in enumerate(near)]
    heapify(heap)
    order: list[int] = []
    place = np.full(buses, -1)
    later: list[list[int]] = []
    while heap:
        degree, k = heappop(heap)
        if place[k] >= 0 or degree != len(near[k]):  # an entry from before the degree changed
            continue
        place[k] = len(order)
        order.append(k)
        later.append(list(near[k]))
        for i in near[k]:
            near[i] |= near[k]
            near[i] -= {i, k}
            heappush(heap, (len(near[i]), i))
    rows = [np.sort(place[others]) for others in later]
    columns = np.concatenate([[0], np.cumsum([len(each) for each in rows])])
    return np.array(order), columns.astype(np.int64), np.concatenate(rows).astype(np.int64)


def updates(buses: int, columns: Ints, rows: Ints, keys: Ints) -> Ints:
    """The blocks that the elimination of each bus changes: one for each pair of its later neighbours."""
    pairs = [np.zeros(0, np.int64)]
    for k in range(buses):
        later = rows[columns[k] : columns[k + 1]]
        c, d = np.tril_indices(len(later), -1)
        pairs.append(later[d] * buses + later[c])
    return buses + np.searchsorted(keys, np.concatenate(pairs))
