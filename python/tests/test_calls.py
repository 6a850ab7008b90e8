"""Calls with values, stacks and scripts; values as gdb prints them."""

import re
import shutil
import signal
import subprocess
import sys
import threading

import pytest

import trapline


def test_calls_have_arguments_values_and_durations(program):
    with trapline.run([program, "30"]).trace("price") as calls:
        seen = list(calls)
    assert [call.args.item for call in seen] == list(range(30))
    assert [call.ret for call in seen] == [
        -1 if item % 10 == 3 else item * 2 + len(("apple", "pear", "quince")[item % 3]) for item in range(30)
    ]
    assert all(call.how == "returned" and call.duration_ns >= 0 and call.function == "price" for call in seen)
    assert [call.time_ns for call in seen] == sorted(call.time_ns for call in seen)
    assert calls.missed == 0 and calls.refused == []
    with pytest.raises(AttributeError, match="no argument 'x'; there are item, name"):
        seen[0].args.x


def test_values_are_those_that_gdb_prints(program, tmp_path):
    if shutil.which("gdb") is None:
        pytest.skip("no gdb")
    commands = ["break half", "commands", "silent", 'printf "V %.17g %.9g\\n", x, y', "continue", "end", "run 12"]
    (tmp_path / "commands").write_text("\n".join(commands) + "\n")
    words = ["gdb", "-batch", "-nx", "-x", tmp_path / "commands", program]
    printed = subprocess.run(words, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    expected = [tuple(map(float, line.split()[1:])) for line in printed.stdout.splitlines() if line.startswith("V ")]
    assert len(expected) == 12, printed.stdout + printed.stderr
    calls = list(trapline.run([program, "12"]).trace("half"))
    assert [(call.args["x"], call.args["y"]) for call in calls] == expected
    assert [call.ret for call in calls] == [x / 2 + y for x, y in expected]


def test_conditions_and_texts(program):
    signature = "price(long item, str name) -> long"
    calls = list(trapline.run([program, "40"]).trace(signature, where="ret < 0"))
    assert [(call.args.item, call.args.name) for call in calls] == [
        (item, ("apple", "pear", "quince")[item % 3]) for item in (3, 13, 23, 33)
    ]
    assert len(list(trapline.run([program, "40"]).trace("price", most=5))) == 5
    entered = list(trapline.run([program, "2"]).trace("price", entry_only=True))
    assert [(call.how, call.ret, call.duration_ns) for call in entered] == [("entered", None, None)] * 2


#: Prints calls of a victim until it is interrupted, and then how it went on.
LOOP = """
import sys, trapline
calls = trapline.attach(int(sys.argv[1])).trace("price")
with calls:
    print("ready", flush=True)
    seen = 0
    for call in calls:
        seen += 1
        if seen == 10:
            print("ten", flush=True)
    print("after the loop", seen, calls.missed, flush=True)
"""


def test_an_interrupt_ends_the_loop_and_no_record_is_lost(victim):
    looping = subprocess.Popen([sys.executable, "-c", LOOP, str(victim.pid)], stdout=subprocess.PIPE, text=True)
    assert looping.stdout.readline() == "ready\n"
    victim.run(5000)
    assert looping.stdout.readline() == "ten\n"
    looping.send_signal(signal.SIGINT)
    assert looping.stdout.readline() == "after the loop 5000 0\n"
    assert looping.wait(60) == 0
    looping.stdout.close()
    assert victim.run(1) == (5001, 5001)
    assert "no probes of ours" in status(victim.pid)


def status(pid):
    return subprocess.run([trapline.command(), "status", "-p", str(pid)], capture_output=True, text=True).stdout


def test_leaving_a_loop_early_detaches(victim):
    with trapline.attach(victim.pid).trace("price") as calls:
        victim.run(100)
        for call in calls:
            break
    assert call.args.item == 0
    assert victim.run(1) == (101, 101)
    assert "no probes of ours" in status(victim.pid)


def test_stacks_become_a_flame_graph(victim, tmp_path):
    with trapline.attach(victim.pid).stacking("store") as running:
        victim.run(200)
    stacks = running.result
    assert sum(stack.hits for stack in stacks) == 200 and stacks.missed == 0
    names = [frame.function for frame in stacks[0].frames]
    assert names[:2] == ["store", "handle"] and stacks[0].frames[1].line > 0
    assert re.search(r"handle;store 200$", stacks.folded().strip())
    stacks.flamegraph(tmp_path / "out.svg")
    svg = (tmp_path / "out.svg").read_text()
    assert "<svg" in svg and "handle (200 calls, 100.00%)" in svg and stacks._repr_html_().lstrip().startswith("<?xml")
    assert trapline.run([victim.process.args[0], "5"]).stack("d")[0].frames[0].function == "d", "and no double"
    timed = trapline.run([victim.process.args[0], "50"]).stack("store", time=True)
    assert timed[0].time_ns > 0 and " ns, 100.00%" in timed.svg()


def test_scripts(program, victim):
    script = "uprobe:{}:price {{ @[arg0 % 3] = count(); @h = hist(arg0); @n++; }} END {{ printf(\"done\\n\"); }}"
    result = trapline.run([program, "90"]).run(script.format(program))
    assert result.maps["@"] == {"0": 30, "1": 30, "2": 30} and result.maps["@n"] == 90
    assert result.maps["@h"].total == 90 and result.output == "done\n"
    timed = trapline.attach(victim.pid).run(script.format(program), seconds=0.3)
    assert timed.output == "done\n"
    with pytest.raises(trapline.ScriptError, match="nosuch"):
        trapline.attach(victim.pid).run("uprobe:libc:malloc { nosuch(); }")


def test_other_verbs_give_their_objects(victim):
    listed = list(trapline.attach(victim.pid).events("list", "price", "store"))
    assert [one["type"] for one in listed] == ["list", "list"]


def test_waiting_in_a_thread(victim):
    results = []
    session = trapline.attach(victim.pid)
    thread = threading.Thread(target=lambda: results.append(session.count("price", seconds=0.2)))
    thread.start()
    thread.join()
    assert results[0]["price"].hits == 0
