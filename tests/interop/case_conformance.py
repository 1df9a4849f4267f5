"""The suite of the source traits, which twin and node pass in `cargo test`, on a real cluster."""
import os
import subprocess

import cluster
from case_wire import TINY
from world import build, case, check, tail

LEASE = 120  # seconds, fixed in 0.9.1


@case("conformance", "the suite of the source traits, which twin and node pass, passes on a real 0.9.1 cluster: queue, epochs, an expired lease, prepare and record, the destructive one too, "
                     "partitions, offsets, added columns, remote log, what is gone", calm=True)
def conformance(world):
    c = cluster.up(world, shared=False, settings=TINY)
    tests = os.environ.get("LAKEWARD_INTEROP_TESTS") or build()["it"]
    argv = [tests, "--ignored", "--exact", "conformance::a_real_cluster_conforms", "--nocapture"]
    process = world.start("tests", argv, stdout=subprocess.PIPE, env={**os.environ, "LAKEWARD_CLUSTER": c.address, "LAKEWARD_CLUSTER_LEASE": str(LEASE)})
    out = process.communicate(timeout=400)[0].decode()
    check(process.returncode == 0 and "1 passed" in out, f"{tail(process.log, 30)}\n{out[-2000:]}")
    return None
