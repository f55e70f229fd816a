"""The command line: ``python -m astrai_kernels`` and ``astrai-kernels``."""

import argparse
import re
import sys
from collections.abc import Sequence

import torch

from astrai_kernels import doctor
from astrai_kernels.cpu.compiler import compiled_library
from astrai_kernels.cuda.attention import HEAD_DIMS
from astrai_kernels.cuda.catalog import GROUPS, build, specializations
from astrai_kernels.cuda.compiler import OLDEST_ARCH
from astrai_kernels.errors import KernelsError

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; None reads those of the process.

    Returns:
        The exit status: 0, or 2 when a setting is wrong or the kernels cannot be built.
    """
    options = _parser().parse_args(arguments)
    try:
        if options.command == "doctor":
            sys.stdout.write(doctor.report(options.device or doctor.default_device()))
        elif options.arch:
            _build_cuda(options)
        else:
            sys.stdout.write(f"{compiled_library()}\n")
    except KernelsError as error:
        sys.stderr.write(f"astrai-kernels: {error}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
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
    build_parser = commands.add_parser(
        "build", help="compile kernels into the cache folder, if they aren't there"
    )
    build_parser.add_argument(
        "--arch",
        type=_archs,
        help="GPUs to compile the CUDA kernels for, such as sm_80,sm_90,sm_100,sm_120; no GPU is "
        "needed (default: compile the CPU kernels)",
    )
    build_parser.add_argument(
        "--head-dim", type=_numbers, default=HEAD_DIMS, help="with --arch, such as 64,128"
    )
    build_parser.add_argument(
        "--group", type=_numbers, default=GROUPS, help="query heads per K/V head, with --arch"
    )
    build_parser.add_argument(
        "--dtype", choices=_DTYPES, default="bfloat16", help="of model and cache, with --arch"
    )
    return parser


def _build_cuda(options: argparse.Namespace) -> None:
    kernels = specializations([_DTYPES[options.dtype]], options.head_dim, options.group)
    for arch in options.arch:
        sys.stdout.write(f"sm_{arch}: {build(arch, kernels)} kernels\n")


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list like 64,128") from error


def _archs(text: str) -> list[int]:
    archs = []
    for name in text.split(","):
        match = re.fullmatch(r"sm_(\d+)", name)
        if match is None or int(match[1]) < OLDEST_ARCH:
            oldest = f"sm_{OLDEST_ARCH}"
            raise argparse.ArgumentTypeError(f"{name!r} is no architecture from {oldest} on")
        archs.append(int(match[1]))
    return archs


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{name!r} is not a device torch knows") from error


if __name__ == "__main__":
    sys.exit(main())
