"""`ge2 plot LOG`: the curves of logs that `ge2.io.progress` wrote, as a picture."""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np

from ge2.base.errors import Ge2Error, InputError
from ge2.io.log import read_log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("logs", nargs="+", metavar="LOG", help="a file that ge2.io.progress(log=...) wrote")
    option("-o", "--output", metavar="FILE", help="the picture; LOG.png unless told")
    option("--y", default="loss", metavar="NAME", help="what is drawn (%(default)s)")
    option("--x", default="step", metavar="NAME", help="against what (%(default)s), as seconds")
    option("--smooth", type=share, default=0.0, metavar="S", help="0 to 1: the weight of the past")
    option("--log-y", action="store_true", help="a logarithmic axis")


def share(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 1.0
    if not 0 <= found < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return found


def run(options: argparse.Namespace) -> int:
    curves = {path: curve(path, options.x, options.y) for path in options.logs}
    path = options.output or f"{os.path.splitext(options.logs[0])[0]}.png"
    picture = drawn(curves, options)
    try:
        picture.savefig(path, dpi=120)
    except (OSError, ValueError) as error:  # no such folder; no such format
        raise Ge2Error(f"{path} cannot be written: {error}", fix="-o curve.png") from None
    for name, (_, ys) in curves.items():
        print(f"{name}: {len(ys)} steps, {options.y} {ys[0]:.4g} to {ys[-1]:.4g}")
    print(path)
    return 0


def curve(path: str, x: str, y: str) -> tuple[Any, Any]:
    """Two columns of a log, where both are numbers."""
    try:
        found = read_log(path)
    except OSError as error:
        raise Ge2Error(f"{path} cannot be read: {error.strerror}") from None
    for name in (x, y):
        if name not in found or not len(found[name]):
            what = f"{path} has no numbers named {name!r}"
            have = (
                ", ".join(found)
                if len(found) > 1
                else "ge2.io.progress(..., log=path), record(loss=loss)"
            )
            raise InputError(what, fix=f"--{'x' if name == x else 'y'} with one of {have}")
    there = ~(np.isnan(found[x]) | np.isnan(found[y]))
    return found[x][there], found[y][there]


def drawn(curves: dict[str, tuple[Any, Any]], options: argparse.Namespace) -> Any:
    """The figure. InputError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        what = f"ge2 plot draws by matplotlib, which cannot be imported: {error}"
        raise InputError(what, fix="pip install 'ge2[plot]'") from None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, (xs, ys) in curves.items():
        line = axes.plot(xs, smoothed(ys, options.smooth), label=os.path.basename(name))[0]
        if options.smooth:
            axes.plot(xs, ys, color=line.get_color(), alpha=0.25, linewidth=0.8)
    axes.set(xlabel=options.x, ylabel=options.y, yscale="log" if options.log_y else "linear")
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend()
    return figure


def smoothed(ys: Any, weight: float) -> Any:
    """The exponential mean of a curve, without the bias of its begin.

    >>> smoothed(np.array([1.0, 1.0, 2.0]), 0.5)
    array([1.        , 1.        , 1.57142857])
    """
    mean, total, found = 0.0, 0.0, []
    for y in ys:
        mean, total = weight * mean + (1 - weight) * y, weight * total + (1 - weight)
        found.append(mean / total)
    return np.array(found)
