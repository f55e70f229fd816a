"""The replicas that requests of this process can be sent to, as Serve's routers know them.

A module of its own: Serve pickles the router's class by value, which takes the names of its module
along, and what they hold would be there twice.
"""

from weakref import WeakSet

from ray.serve.request_router import RequestRouter

_routers: WeakSet[RequestRouter] = WeakSet()


def join(router: RequestRouter) -> None:
    """A router tells that it is there; it is forgotten when it goes."""
    _routers.add(router)


def replica_names(app_name: str) -> list[str]:
    """The replicas behind all handles of an application, from any thread."""
    routers = [router for router in list(_routers) if router.app_name == app_name]
    return sorted({each.unique_id for router in routers for each in list(router.curr_replicas)})
