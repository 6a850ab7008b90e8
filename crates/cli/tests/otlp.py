# Reads files that were sent to a collector, with OpenTelemetry's own schema. Prints a line of JSON for each
# file, with all data points.
import json, sys
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest


def known(message):
    assert len(UnknownFieldSet(message)) == 0, f"unknown fields in {message}"
    for field, value in message.ListFields():
        if field.message_type:
            for one in value if field.is_repeated else [value]:
                known(one)


def plain(attributes):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


for path in sys.argv[1:]:
    request = ExportMetricsServiceRequest.FromString(open(path, "rb").read())
    known(request)
    points = []
    for of in request.resource_metrics:
        assert plain(of.resource.attributes)["service.name"] == "trapline"
        for scope in of.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                data = getattr(metric, kind)
                if kind != "gauge":
                    assert data.aggregation_temporality == 2, "cumulative"
                for point in data.data_points:
                    shown = {"name": metric.name, "unit": metric.unit, "kind": kind, "labels": plain(point.attributes)}
                    shown["from"], shown["to"] = point.start_time_unix_nano, point.time_unix_nano
                    if kind == "histogram":
                        shown |= {"count": point.count, "buckets": list(point.bucket_counts), "bounds": list(point.explicit_bounds), "sum": point.sum}
                    else:
                        shown["value"] = point.as_int
                        shown["monotonic"] = kind == "sum" and data.is_monotonic
                    points.append(shown)
    print(json.dumps(points))
