# Scrapes for a test, and parses with the client library's own parsers. For each line of input: scrapes once
# in each format, checks that no counter went back, and prints everything as one JSON object.
import json, sys, urllib.request
from prometheus_client.parser import text_string_to_metric_families as plain
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics

FORMATS = {"text/plain": plain, "application/openmetrics-text": open_metrics}
last = {}

for _ in sys.stdin:
    for accept, parse in FORMATS.items():
        request = urllib.request.Request(sys.argv[1], headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith(accept), answer.headers["Content-Type"]
            text = answer.read().decode()
        now = {}
        for family in parse(text):
            for sample in family.samples:
                name = json.dumps([sample.name, sorted(sample.labels.items())])
                assert name not in now, f"twice: {name}"
                now[name] = sample.value
                if family.type in ("counter", "histogram"):
                    assert sample.value >= last.get(name, 0), f"went back: {name}"
                    last[name] = sample.value
    short = {}
    for name, value in now.items():
        name, labels = json.loads(name)
        labels = dict(labels)
        short[" ".join([name, labels.get("function", ""), labels.get("le", "")]).strip()] = value
    print(json.dumps(short), flush=True)
