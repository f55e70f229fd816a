"""Replicas of the engine under Ray Serve, behind one address; needs the extra ``ray``.

``serve run astrai_api.ray_serve:app replicas=2`` runs two. :class:`ReplicaArguments` are the
arguments, on that command line or under ``args`` of a Serve config file.
"""

try:
    import ray.serve  # noqa: F401
except ImportError as error:
    raise ImportError("astrai_api.ray_serve needs Ray Serve: install astrai-api[ray].") from error

from astrai_api.ray_serve.builder import ReplicaArguments, build_app

__all__ = ["ReplicaArguments", "app", "build_app"]

app = build_app
"""What Serve is pointed at."""
