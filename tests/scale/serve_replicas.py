"""Runs a Serve config file under a Ray of its own: ``serve_replicas.py CONFIG FOLDER``.

It does what ``serve run CONFIG`` does, with less of Ray around it. It prints ``ready`` when the
application serves, and ends when its standard input does.
"""

import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import ray
import yaml
from ray import serve
from ray.serve.schema import ServeDeploySchema

from astrai_api.ray_serve import ReplicaArguments


def start_ray(folder: str) -> None:
    """Start Ray, whose processes have to start in 30 seconds: on a busy machine try again."""
    with suppress(Exception):
        return _init(folder)
    ray.shutdown()
    return _init(folder)


def _init(folder: str) -> None:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        _temp_dir=folder,
    )


def main(config: Path, folder: str) -> None:
    """Serve until nobody wants it any more."""
    schema = ServeDeploySchema.model_validate(yaml.safe_load(config.read_text()))
    (application,) = schema.applications
    module, _, name = application.import_path.partition(":")
    build = getattr(import_module(module), name)
    start_ray(folder)
    try:
        serve.start(http_options=schema.http_options.model_dump(include={"host", "port"}))
        arguments = ReplicaArguments.model_validate(application.args)
        serve.run(build(arguments), name=application.name, route_prefix=application.route_prefix)
        print("ready", flush=True)
        sys.stdin.read()
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
