"""`run --list`, `run`, `run CASE…`, `run --lanes 1 CASE…`."""
import ast
import importlib
import os
import sys
import time

import lanes
import world

# In the order in which cases start: what must keep times and what waits for long first, see lanes.py.
MODULES = ["case_life", "case_conformance", "case_beside", "case_audit", "case_pk", "case_cluster", "case_against", "case_wire", "case_load", "case_pk_many", "case_schema", "case_readback", "case_pk_read", "case_rescale", "case_repair", "case_alter", "case_writers", "case_read", "case_golden", "case_s3", "case_service", "case_tour"]


def facts():
    """Name and fact of each case, as its source has them: nothing is imported, so nothing need have been fetched."""
    for module in MODULES:
        tree = ast.parse((world.HERE / f"{module}.py").read_text())
        for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
            for call in (node for node in function.decorator_list if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "case"):
                yield ast.literal_eval(call.args[0]), ast.literal_eval(call.args[1])


def main():
    names = sys.argv[1:]
    if names == ["--list"]:
        listed = dict(facts())
        for name, fact in listed.items():
            print(f"{name:<{max(map(len, listed))}}  {fact}")
        return 0
    for module in MODULES:
        importlib.import_module(module)
    count = 2
    if names[:1] == ["--lanes"]:
        count, names = int(names[1]), names[2:]
    unknown = [name for name in names if name not in world.CASES]
    if unknown:
        print(f"no such case: {', '.join(unknown)} (see --list)", file=sys.stderr)
        return 2
    started = time.monotonic()
    if "LAKEWARD_BIN" not in os.environ:
        os.environ["LAKEWARD_BIN"] = world.build()["lakeward"]  # the build is no case's time
    names = list(dict.fromkeys(names or (name for name, _ in facts())))  # not in the order of imports
    failed = lanes.run(names, min(count, len(names)))
    print(f"{time.monotonic() - started:.0f} s\n{len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
