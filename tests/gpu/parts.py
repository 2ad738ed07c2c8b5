"""The parts of a GPU benchmark: command line, time limits, tables, figures.

One part's failure is not the end of the next.
"""
import argparse
import json
import pathlib
import subprocess
import time
import traceback

from runner import LIB, Lost


def table(header, rows):
    """Numbers with two digits."""
    rows = [header] + [[cell if isinstance(cell, str) else f"{cell:.2f}" for cell in row]
                       for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    for row in rows:
        print("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip(), flush=True)


def program(name, part, seconds):
    """What the program build/test/NAME measured of its PART."""
    job = subprocess.run([LIB.parent / "test" / name, part], timeout=seconds, text=True,
                         capture_output=True)
    if job.returncode:
        raise Lost(f"{name} {part} ended with {job.returncode}\n{job.stderr[-2000:]}")
    return json.loads(job.stdout)[part]


def parser(doc, limits, figures):
    """doc: of the benchmark; limits: seconds by part; figures: the default of --json, in build."""
    result = argparse.ArgumentParser(description=doc.splitlines()[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog=doc.split("\n\n", 1)[1])
    result.add_argument("--parts", default=",".join(limits), help="comma-separated (all)")
    result.add_argument("--patience", type=float, default=1,
                        help=f"times the parts' limits, {sum(limits.values())} s in all (1)")
    result.add_argument("--json", type=pathlib.Path, default=LIB.parent / figures,
                        help=f"where the figures go (build/{figures})")
    return result


def chosen(arguments, limits):
    """The parts that the parsed command line names; the parser's error where there is no such."""
    options = arguments.parse_args()
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - limits.keys():
        arguments.error(f"no such part: {', '.join(sorted(unknown))}; there are "
                        f"{', '.join(limits)}")
    return options


def run(options, parts, limits, found):
    """parts: functions of the seconds that they may take, which print a table and return figures.
    Adds these to `found` by name and writes it after each part. Returns the exit status: 1 where
    any figure is an {"error": ...}."""
    failed = []
    for name in options.parts:
        begin = time.monotonic()
        try:
            found[name] = parts[name](limits[name] * options.patience)
        except Exception as error:  # the next part goes on all the same
            traceback.print_exc()
            found[name] = {"error": f"{type(error).__name__}: {error}"[-2000:]}
        if '"error"' in json.dumps(found[name]):
            failed.append(name)
        print(f"{name}: {time.monotonic() - begin:.0f} s\n", flush=True)
        options.json.write_text(json.dumps(found, indent=1))
    print(f"figures: {options.json}" + (f"; with errors: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0
