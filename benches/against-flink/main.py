"""The comparison: fills, lets both sides tier, one after the other, looks into both lakes, and tells ratios. See README.md."""
import argparse
import os
import pathlib
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
MIB = 1024 * 1024
KINDS = {"log": "log table", "pk": "primary key"}
MEMORY_GOAL = 6


def arguments():
    parser = argparse.ArgumentParser(prog="run", description="Lakeward against the real Flink tiering job, on one real Fluss cluster and equal tables. Fails when a goal is missed.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rows-log", type=int, default=8_000_000, help="rows of the log tables")
    parser.add_argument("--rows-pk", type=int, default=3_000_000, help="rows of the primary-key tables")
    parser.add_argument("--buckets", type=int, default=2, help="buckets per table, and parallelism of the job")
    parser.add_argument("--only", choices=KINDS, help="this kind of table alone")
    parser.add_argument("--memory", default="64MiB", help="Lakeward's `memory.limit`")
    parser.add_argument("--goal-log", type=float, default=6, help="rows per CPU-second of log tables, as a multiple of the job's")
    parser.add_argument("--goal-pk", type=float, default=8, help="the same of primary-key tables")
    parser.add_argument("--jvm", default="-Xmx2g -XX:MaxDirectMemorySize=1g", help="flags of the job's JVM")
    return parser.parse_args()


def lakeward():
    """The release binary, built if need be."""
    if "LAKEWARD_BIN" not in os.environ:
        subprocess.run(["cargo", "build", "--release", "--locked"], cwd=REPOSITORY, check=True)
        os.environ["LAKEWARD_BIN"] = str(pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "release/lakeward")


def main():
    asked = arguments()
    lakeward()
    sys.path.append(str(REPOSITORY / "tests/interop"))
    import cluster
    import world
    w, failed = world.World(), True
    try:
        with w.case("against-flink"):
            # No state snapshot comes between: both sides read primary-key tables from their change log, whole.
            c = cluster.up(w, shared=False, settings=["kv.snapshot.interval: 365d"], tablet_heap="1536m")
            missed = [miss for kind in KINDS if asked.only in (None, kind) for miss in compare(w, c, kind, asked)]
        failed = False
    finally:
        w.close(keep=failed)
    for miss in missed:
        print(f"MISSED: {miss}")
    return 1 if missed else 0


def compare(world, cluster, kind, asked):
    """One kind of table; the goals that were missed."""
    import sides
    rows, goal = getattr(asked, f"rows_{kind}"), getattr(asked, f"goal_{kind}")
    print(f"{KINDS[kind]}, {rows:,} rows, {asked.buckets} buckets\n{'':<10}{'µs CPU/row':>12}{'in kernel':>11}{'rows/CPU-s':>12}{'CPU s':>8}{'wall s':>8}{'peak MiB':>10}{'servers CPU s':>15}{'others CPU s':>14}", flush=True)
    took, found = {}, {}
    for side in ("flink", "lakeward"):
        table = f"{side}.{kind}"
        sides.fill(world, cluster, table, kind, rows, asked.buckets)
        took[side] = t = sides.theirs(world, cluster, table, rows, asked.buckets, asked.jvm.split()) if side == "flink" else sides.ours(world, cluster, table, rows, asked.memory)
        print(f"{side:<10}{t.cpu / rows * 1e6:>12.2f}{t.kernel / rows * 1e6:>11.2f}{rows / t.cpu:>12,.0f}{t.cpu:>8.2f}{t.wall:>8.1f}{t.memory / MIB:>10.0f}{t.servers:>15.1f}{t.others:>14.1f}", flush=True)
        found[side] = sides.contents(cluster.table(table), rows)
    from world import same
    same(found["lakeward"], found["flink"], "what the two lakes have")
    theirs, ours = took["flink"], took["lakeward"]
    speed, memory = theirs.cpu / ours.cpu, theirs.memory / ours.memory
    print(f"{'ratio':<10}{'':>12}{'':>11}{speed:>11.1f}x{'':>8}{theirs.wall / ours.wall:>7.1f}x{f'1/{memory:.1f}':>10}\nboth lakes have the same {rows:,} rows, each once\n", flush=True)
    if speed < goal:
        yield f"{KINDS[kind]}: {speed:.1f} times the rows per CPU-second, goal {goal:g}"
    if memory < MEMORY_GOAL:
        yield f"{KINDS[kind]}: 1/{memory:.1f} of the memory, goal 1/{MEMORY_GOAL}"


if __name__ == "__main__":
    sys.exit(main())
