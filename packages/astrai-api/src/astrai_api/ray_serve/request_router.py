"""Ray Serve's choice of a replica, left to our :class:`PrefixRouter`.

Serve makes one of these in each process that has a handle to the replicas, and calls it in the
thread that routes.
"""

from collections import Counter

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from astrai_api.ray_serve import known_replicas
from astrai_api.replicas.forwarded import ForwardedRequest
from astrai_api.replicas.prefix_router import PrefixRouter


class PrefixRequestRouter(RequestRouter):
    """Sends a :class:`ForwardedRequest` to the replica it names, or else to the best one."""

    def initialize_state(self, *, prefix_routing: bool = True) -> None:
        """Called by Serve before anything else.

        Args:
            prefix_routing: whether the beginnings of prompts count, or loads alone.
        """
        self._by_prefix = prefix_routing
        self._router = PrefixRouter()
        self._sent: Counter[ReplicaID] = Counter()
        self._names: set[str] = set()
        known_replicas.join(self)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Replicas one by one, the best first; Serve takes the first that is not full."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # when all are full
        request: ForwardedRequest = pending_request.args[0]
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if request.replica in replicas:
            return [[replicas[request.replica]]]
        loads = {name: self._load(replica) for name, replica in replicas.items()}
        blocks = request.blocks if self._by_prefix else ()
        ranked = self._router.rank(blocks, loads)
        # Recorded before it is sent: the next request of a burst has to know.
        self._router.record(blocks, ranked[0])
        return [[replicas[name]] for name in ranked]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve tells which replicas there are."""
        super().update_replicas(replicas)
        names = {replica.replica_id.unique_id for replica in replicas}
        if self._names - names:
            self._router.keep_only(names)
        self._names = names

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """Serve tells that it sends a request."""
        super().on_send_request(replica_id)
        self._sent[replica_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Serve tells that a request has ended, however."""
        super().on_request_completed(replica_id, internal_request_id)
        self._sent[replica_id] -= 1
        if self._sent[replica_id] <= 0:
            del self._sent[replica_id]

    def _load(self, replica: RunningReplica) -> int:
        """Requests of a replica: those sent from here, or all if Serve has heard lately."""
        heard = self.replica_queue_len_cache.get(replica.replica_id) or 0
        return max(heard, self._sent[replica.replica_id])
