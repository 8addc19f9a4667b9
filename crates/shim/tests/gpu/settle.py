"""What pairs of times say: one line of JSON, and a row of a table.

    settle.py WHAT < PAIRS      each line: time with the shim, time without it
"""

import json
import random
import statistics
import sys

pairs = [tuple(map(float, line.split())) for line in sys.stdin if line.strip()]
if not pairs:
    raise SystemExit(f"{sys.argv[1]}: nothing was measured")
chance = random.Random(1)


def settled(numbers):
    """The median, and between what it lies in 95 of 100 draws."""
    draws = sorted(statistics.median(chance.choices(numbers, k=len(numbers))) for _ in range(2000))
    return statistics.median(numbers), draws[50], draws[-51]


speed = [round(number, 4) for number in settled([without / with_ for with_, without in pairs])]
extra = [round(number, 1) for number in settled([with_ - without for with_, without in pairs])]
with_, without = (statistics.median(column) for column in zip(*pairs))
print(json.dumps({"what": sys.argv[1], "pairs": len(pairs), "with_ns": round(with_, 1), "without_ns": round(without, 1),
                  "speed": speed[0], "speed_95_percent": speed[1:], "extra_ns": extra[0], "extra_95_percent": extra[1:]}))
print(f"| {sys.argv[1]}, {len(pairs)} pairs of blocks in one process | {without:.1f} ns without, {with_:.1f} with: {extra[0]} ns more"
      f" ({extra[1]} to {extra[2]}); speed {speed[0]} (95 %: {speed[1]} to {speed[2]}) |")
