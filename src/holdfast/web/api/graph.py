"""The relations of a job as a graph: its chain, its blockers, and the jobs that wait for it."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from msgspec import Struct

from ...app.workflows import BlockerNode, Relations

NEAR = 3  # jobs of a chain on each side


class GraphNode(Struct):
    """A job in the graph of relations."""

    id: int
    task: str | None
    status: str
    """`deleted` if it is gone."""
    error_code: str | None = None
    external: bool = False
    more: int = 0
    """Further blockers of it that are left out."""


class GraphEdge(Struct):
    source: int
    target: int
    kind: Literal["continues", "blocks"]


class Graph(Struct):
    """The chain of a job, the jobs that it waits for and theirs, and those that wait for it."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    chain_length: int
    more_blockers: int
    more_waiting: int
    batch_id: int | None
    is_callback: bool


def graph_of(id: int, relations: Relations) -> Graph:
    """Return the relations of a job as nodes and edges."""
    last = relations.chain[-1].chain_index if relations.chain else 0
    here = next((one.chain_index for one in relations.chain if one.id == id), 0)
    chain = [one for one in relations.chain if one.chain_index in (0, last) or abs(one.chain_index - here) <= NEAR]
    nodes = {one.id: GraphNode(one.id, one.task, one.status, one.error_code, bool(one.external)) for one in chain}
    edges = [GraphEdge(one.id, other.id, "continues") for one, other in pairwise(chain)]
    for waiting in relations.waiting:
        nodes.setdefault(waiting.id, GraphNode(waiting.id, waiting.task, waiting.status, waiting.error_code))
        edges.append(GraphEdge(chain[-1].id if chain else id, waiting.id, "blocks"))

    def add(node: BlockerNode, target: int) -> None:
        one = node.blocker
        found = GraphNode(
            one.id or one.chain_id, one.task, one.status or "deleted", one.error_code, bool(one.external)
        )
        found.more = node.more
        nodes.setdefault(found.id, found)
        edges.append(GraphEdge(found.id, target, "blocks"))
        for child in node.children:
            add(child, found.id)

    for blocker in relations.blockers:
        add(blocker, id)
    return Graph(
        nodes=list(nodes.values()),
        edges=edges,
        chain_length=relations.chain_length,
        more_blockers=relations.more_blockers,
        more_waiting=relations.more_waiting,
        batch_id=relations.batch_id,
        is_callback=relations.is_callback,
    )
