"""The comparison with the Flink job, `benches/against-flink/`, with few rows: that it runs, and looks at what it should. Its figures need many."""
import sys

from world import REPOSITORY, case, check, same

ROWS = 20_000


@case("against-flink", "`benches/against-flink/` with few rows: the real job and Lakeward tier equal tables, one after the other; each row once in both lakes, and what each took")
def against_flink(world):
    sys.path.append(str(REPOSITORY / "benches/against-flink"))
    import sides
    cluster, took, found = world.cluster(), {}, {}
    for side in ("flink", "lakeward"):
        table = f"{side}.log"
        sides.fill(world, cluster, table, "log", ROWS, 2)
        took[side] = (sides.theirs(world, cluster, table, ROWS, 2, ["-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]) if side == "flink"
                      else sides.ours(world, cluster, table, ROWS, "64MiB"))
        found[side] = sides.contents(cluster.table(table), ROWS)
    same(found["lakeward"], found["flink"], "what the two lakes have")
    for side, t in took.items():
        check(t.cpu > 0 and t.wall > 0 and t.memory > 10_000_000, f"what {side} took: {t}")
    return ", ".join(f"{side} {t.cpu:.2f} s of CPU, {t.memory >> 20} MiB" for side, t in took.items())
