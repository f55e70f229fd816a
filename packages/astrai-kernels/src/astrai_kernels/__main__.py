"""The command line: ``python -m astrai_kernels`` and ``astrai-kernels``."""

import argparse
import sys
from collections.abc import Sequence

import torch

from astrai_kernels import doctor
from astrai_kernels.cpu.compiler import compiled_library
from astrai_kernels.errors import KernelsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; None reads those of the process.

    Returns:
        The exit status: 0, or 2 when a setting is wrong or the kernels cannot be built.
    """
    parser = argparse.ArgumentParser(
        prog="astrai-kernels", description="Attention and rotary kernels over a paged K/V cache."
    )
    commands = parser.add_subparsers(required=True, dest="command", metavar="command")
    doctor_parser = commands.add_parser(
        "doctor", help="print which attention backend is used, and why the others are not"
    )
    doctor_parser.add_argument(
        "--device", type=_device, help="cpu, cuda or cuda:N (default: what torch finds)"
    )
    commands.add_parser(
        "build", help="compile the native CPU kernels into the cache folder, if they aren't there"
    )
    options = parser.parse_args(arguments)
    try:
        if options.command == "build":
            sys.stdout.write(f"{compiled_library()}\n")
        else:
            sys.stdout.write(doctor.report(options.device or doctor.default_device()))
    except KernelsError as error:
        sys.stderr.write(f"astrai-kernels: {error}\n")
        return 2
    return 0


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{name!r} is not a device torch knows") from error


if __name__ == "__main__":
    sys.exit(main())
