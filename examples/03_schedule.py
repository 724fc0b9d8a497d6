"""See which schedule is chosen and why, change it, and see what does not fit.

Run with `python examples/03_schedule.py`. The same on the command line:
`fmhagen explain --target sm90 --tile-n 64`.
"""

from __future__ import annotations

import dataclasses

import fmhagen
from fmhagen.explaining.explain import explain
from fmhagen.instance import Instance


def main() -> None:
    """Choose, explain, override."""
    spec = fmhagen.AttentionSpec(dtype="fp16", head_dim=128)
    target = fmhagen.find_target("h100")  # any name of the chip

    choice = fmhagen.choose_schedule(spec, target=target.name)
    print(f"chosen: {choice.schedule}")
    for reason in choice.reasons:
        print(f"    - {reason}")
    for schedule, reason in choice.rejected:
        print(f"rejected: {schedule}\n    - {reason}")

    # Another schedule: one field of the default replaced.
    narrow = dataclasses.replace(choice.schedule, tile_n=64)
    print()
    print(explain(Instance(spec=spec, schedule=narrow, target=target)))

    # A schedule that does not fit is refused with the field, the value and the limit.
    for change in ({"stages": 9}, {"tile_n": 100}):
        try:
            Instance(
                spec=spec, schedule=dataclasses.replace(choice.schedule, **change), target=target
            ).plan()
        except fmhagen.FmhagenError as error:
            print(f"refused: {error}")


if __name__ == "__main__":
    main()
