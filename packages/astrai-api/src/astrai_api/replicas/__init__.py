"""One address for several engines: which replica answers a request, and how its answer gets back.

Nothing here knows what the replicas run under; :mod:`astrai_api.ray_serve` is one way.
"""
