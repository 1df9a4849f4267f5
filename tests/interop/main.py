"""Runs cases. One line per case with seconds, then `N passed, N failed`; exit code 1 when one failed."""
import importlib
import signal
import sys
import time
import traceback

import world

MODULES = ["case_golden", "case_tour", "case_readback", "case_rescale", "case_schema", "case_service", "case_cluster", "case_wire", "case_load", "case_life"]


def main():
    for module in MODULES:
        importlib.import_module(module)
    names = sys.argv[1:]
    if names == ["--list"]:
        width = max(map(len, world.CASES))
        for name, (fact, _) in world.CASES.items():
            print(f"{name:<{width}}  {fact}")
        return 0
    unknown = [name for name in names if name not in world.CASES]
    if unknown:
        print(f"no such case: {', '.join(unknown)} (see --list)", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    failed, started = 0, time.monotonic()
    w = world.World()
    try:
        w.lakeward()  # the build is no case's time
        for name in names or world.CASES:
            begin = time.monotonic()
            with w.case(name) as log:
                try:
                    note = world.CASES[name][1](w)
                    word, tail = "ok", f"  {note}" if note else ""
                except Exception as error:  # a case may fail in any way, the others still run
                    traceback.print_exc(file=log)
                    failed += 1
                    word, tail = "FAILED", f"\n    {str(error).strip() or repr(error)}\n    see {log.name}"
            print(f"{word:<6}  {time.monotonic() - begin:6.1f} s  {name}{tail}", flush=True)
    finally:
        w.close(keep=failed > 0)
    passed = len(names or world.CASES) - failed
    print(f"{time.monotonic() - started:.0f} s\n{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
