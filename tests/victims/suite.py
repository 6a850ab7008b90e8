"""Runs test modules of the standard library and writes each test's outcome to a file: `suite.py OUT MODULE…`."""
import json
import sys
import unittest


class Recorder(unittest.TestResult):
    outcomes = {}

    def note(self, test, outcome):
        # A test's failure outweighs what its subtests did.
        self.outcomes.setdefault(test.id(), outcome)

    def addSuccess(self, test):
        self.note(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(test, "failed")

    def addError(self, test, err):
        super().addError(test, err)
        self.note(test, "error")

    def addExpectedFailure(self, test, err):
        self.note(test, "expected failure")

    def addUnexpectedSuccess(self, test):
        self.note(test, "unexpected success")

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.note(test, "failed in a subtest")


def without_vsock(tests):
    """Sockets between machines: inside a virtual machine that has the device their set-up waits for ever."""
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            yield from without_vsock(test)
        elif "VSOCK" not in test.id():
            yield test


loaded = unittest.TestSuite()
for name in sys.argv[2:]:
    loaded.addTests(unittest.defaultTestLoader.loadTestsFromName("test." + name))
# One suite per class again, so that class and module fixtures run.
suite = unittest.TestSuite(without_vsock(loaded))
recorder = Recorder()
suite.run(recorder)
with open(sys.argv[1], "w") as out:
    json.dump(recorder.outcomes, out)
