"""Hits and durations: the numbers are those that the program counted itself."""

import threading

import pytest

import trapline


def test_counts_are_the_programs_own(victim):
    with trapline.attach(victim.pid).counting("price", "store", by="tid") as running:
        before, after = (0, 0), victim.run(1234)
    counts = running.result
    assert (counts["price"].hits, counts["store"].hits) == after == (1234, 1234) != before
    assert counts.total == 2468 and counts.missed == 0 and not counts.refused
    assert [share.hits for share in counts["price"].shares] == [1234]
    assert counts["price"].shares[0].tid == victim.pid
    assert victim.run(5) == (1239, 1239), "it runs on"


def test_a_command_is_counted_from_its_start(program):
    counts = trapline.run([program, "77"]).count("price", "handle")
    assert {row.function: row.hits for row in counts} == {"price": 77, "handle": 77}
    assert "77" in counts._repr_html_()


def test_durations_are_of_each_call(victim):
    with trapline.attach(pid=victim.pid).timing("store", "handle") as running:
        victim.run(500)
    lat = running.result
    store, handle = lat["store"], lat["handle"]
    assert (store.calls, handle.calls) == (500, 500) and (store.unpaired, store.unreturned) == (0, 0)
    assert store.histogram.total == 500 and lat.histogram.total == 1000
    # What calls another function takes longer than that.
    assert handle.total_ns > store.total_ns > 0
    for row in (store, handle):
        assert row.min_ns <= row.percentile(50) * 1.04 and row.percentile(100) <= row.max_ns * 1.04
        assert row.percentile(10) <= row.percentile(50) <= row.percentile(99)
    assert "p99" in lat._repr_html_()


def test_percentiles_are_the_commands_own(victim):
    session = trapline.attach(victim.pid)
    objects = []
    events = session.events("lat", "store", options=["-i", "50ms"])
    objects.append(next(events))
    victim.run(3000)
    while objects[-1]["probes"][0]["calls"] < 3000:
        objects.append(next(events))
    events.close()
    for one in objects[1:]:
        lat = trapline.Latencies.of([one])
        if lat["store"].calls:
            expected = [one["probes"][0][name] for name in ("p50_ns", "p90_ns", "p99_ns", "p999_ns")]
            assert [lat.percentile(percent) for percent in (50, 90, 99, 99.9)] == expected


def test_time_ends_a_run_and_the_lock_is_free_meanwhile(victim):
    turns = 0
    done = threading.Event()

    def other():
        nonlocal turns
        while not done.is_set():
            turns += 1

    thread = threading.Thread(target=other)
    thread.start()
    try:
        counts = trapline.attach(victim.pid).count("price", seconds=0.3)
    finally:
        done.set()
        thread.join()
    assert counts.seconds >= 0.3 and counts["price"].hits == 0
    assert turns > 1000, "another thread could not run"


def test_refusals_are_carried(victim):
    with pytest.raises(trapline.NothingProbed, match="no function nosuch") as raised:
        trapline.attach(victim.pid).count("nosuch*", seconds=1)
    assert raised.value.status == 3 and raised.value.refusals == ()
    with pytest.raises(trapline.NothingProbed) as raised:
        trapline.attach(victim.pid).count("price+1", "libc:nosuch", seconds=1)
    assert raised.value.refusals and all(one.kind and one.reason for one in raised.value.refusals)
    with pytest.raises(trapline.UsageError):
        list(trapline.attach(victim.pid).trace("price", where="item >"))
    with pytest.raises(trapline.TraplineError, match="4194999"):
        trapline.attach(pid=4194999).count("libc:malloc", seconds=1)
    with pytest.raises(KeyError, match="no site is named 'handle'"):
        trapline.attach(victim.pid).count("price", seconds=0.1)["handle"]
    for wrong in ({}, {"pid": 1, "name": "x"}):
        with pytest.raises(ValueError):
            trapline.attach(**wrong)
