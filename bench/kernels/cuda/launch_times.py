"""Where the time of a step goes, launch by launch, from what launch_times.cc wrote.

    launch_times.py FILE [--steps N]    medians of the last N steps (8)
    launch_times.py --self-test

A step is what runs from the end of the file's last graph node to its end the time after. Of each launch: microseconds from the
end of the launch before it, which add up to the step; from its own start, which may lie before that end; thread blocks; name.
"""

import argparse
import collections
import re
import statistics
import sys

Launch = collections.namedtuple("Launch", "start end node blocks name")


def read_launches(lines):
    launches = []
    for line in lines:
        start, end, node, blocks, name = line.rstrip("\n").split(",", 4)
        launches.append(Launch(int(start), int(end), int(node), int(blocks), name))
    return sorted(launches)


def last_steps(launches, count):
    """The last complete steps that have as many launches as most of them have."""
    of_graphs = [launch.node for launch in launches if launch.node]
    if not of_graphs:
        raise ValueError("no launch of a graph is recorded")
    ends = [i for i, launch in enumerate(launches) if launch.node == of_graphs[-1]]
    steps = [launches[a + 1 : b + 1] for a, b in zip(ends[:-1], ends[1:])][-count:]
    if not steps:
        raise ValueError("no complete step is recorded")
    length = collections.Counter(len(step) for step in steps).most_common(1)[0][0]
    return [step for step in steps if len(step) == length]


def short_name(name):
    """`levin::cuda::(anonymous namespace)::kernel<...>(...)` as `kernel`."""
    name = name.replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", name.removeprefix("void "))[0].split("::")[-1] or name


def medians(steps):
    rows = []
    for i, launch in enumerate(steps[0]):
        after = [step[i].end - (step[i - 1].end if i else step[i].start) for step in steps]
        own = [step[i].end - step[i].start for step in steps]
        rows.append((statistics.median(after) / 1000, statistics.median(own) / 1000, launch.blocks, short_name(launch.name)))
    return rows


def print_step(rows):
    print("after_us,own_us,blocks,name")
    for after, own, blocks, name in rows:
        print(f"{after:.2f},{own:.2f},{blocks},{name}")
    print("\nafter_us,launches,name")
    sums = collections.defaultdict(list)
    for after, _, _, name in rows:
        sums[name].append(after)
    for name, times in sorted(sums.items(), key=lambda item: -sum(item[1])):
        print(f"{sum(times):.1f},{len(times)},{name}")
    print(f"{sum(row[0] for row in rows):.1f},{len(rows)},the step")


def self_test():
    lines = []
    for step in range(4):
        t = 100000 * step
        lines += [f"{t},{t + 2000},0,0,copy\n", f"{t + 1000},{t + 5000},7,4,void levin::cuda::(anonymous namespace)::a<3>(int)\n"]
        lines += [f"{t + 4000},{t + 8000 + step},9,132,b(float)\n"]
    rows = medians(last_steps(read_launches(reversed(lines)), 8))
    assert rows == [(2.0, 2.0, 0, "copy"), (3.0, 4.0, 4, "a"), (3.002, 4.002, 132, "b")], rows
    for broken in ([], ["1,2,0,1,a\n"], ["1,2,5,1,a\n"]):
        try:
            last_steps(read_launches(broken), 8)
        except ValueError:
            continue
        raise AssertionError(f"{broken} has no step")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    if options.file is None:
        parser.error("FILE is missing")
    with open(options.file) as file:
        launches = read_launches(file)
    try:
        print_step(medians(last_steps(launches, options.steps)))
    except ValueError as error:
        sys.exit(f"{options.file}: {error}")


if __name__ == "__main__":
    main()
