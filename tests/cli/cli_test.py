#!/usr/bin/env python3
"""The command `tide`: run, doctor, build-torch, completion, and its installation. Ends with
`N passed, N failed`. Arguments name tests, as unittest's."""
import sys
import unittest

if __name__ == "__main__":
    names = ["run_test", "doctor_test", "completion_test", "install_test"]
    arguments = sys.argv if len(sys.argv) > 1 else [sys.argv[0], *names]
    result = unittest.main(module=None, argv=arguments, exit=False, verbosity=1).result
    failed = len({str(test) for test, _ in result.failures + result.errors})
    print(f"{result.testsRun - failed - len(result.skipped)} passed, {failed} failed")
    sys.exit(failed != 0)
