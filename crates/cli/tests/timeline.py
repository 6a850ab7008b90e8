# Reads a timeline by Perfetto's own schema, strictly, and prints as JSON what is on its tracks.
import json, sys
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

trace = Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())
assert trace.SerializeToString(), "an empty trace"
tracks, names, arguments, open_, slices = {}, {}, {}, {}, []
events = []
for order, packet in enumerate(trace.packet):
    assert packet.trusted_packet_sequence_id, "a packet of no sequence"
    for part in [packet, packet.track_event, packet.track_descriptor, packet.track_descriptor.thread, *packet.track_event.debug_annotations]:
        assert len(UnknownFieldSet(part)) == 0, "a field that the schema does not know: %s" % part
    kind = packet.WhichOneof("data")
    if packet.sequence_flags & 1:
        names, arguments = {}, {}
    for one in packet.interned_data.event_names:
        names[one.iid] = one.name
    for one in packet.interned_data.debug_annotation_names:
        arguments[one.iid] = one.name
    if kind == "track_descriptor":
        tracks[packet.track_descriptor.uuid] = packet.track_descriptor
    elif kind == "track_event":
        event = packet.track_event
        assert packet.sequence_flags & 2 and event.track_uuid in tracks, "an event on no track"
        values = {}
        for one in event.debug_annotations:
            field = one.WhichOneof("value")
            values[arguments[one.name_iid]] = [field, getattr(one, field)]
        name = names[event.name_iid] if event.name_iid else None
        events.append((packet.timestamp, order, event.type, event.track_uuid, name, values))
    else:
        raise AssertionError("a packet that is nothing: %s" % packet)
for time, _, kind, track, name, values in sorted(events, key=lambda event: event[:2]):
    stack = open_.setdefault(track, [])
    if kind == TrackEvent.TYPE_SLICE_BEGIN:
        stack.append([name, time, values, track, len(stack)])
    elif kind == TrackEvent.TYPE_SLICE_END:
        name, begin, values, track, depth = stack.pop()
        slices.append({"name": name, "begin": begin, "end": time, "values": values, "track": track, "depth": depth})
    else:
        slices.append({"name": name, "begin": time, "end": None, "values": values, "track": track, "depth": len(stack)})
left = [one[0] for stack in open_.values() for one in stack]
described = {
    uuid: {"pid": t.process.pid, "process": t.process.process_name, "tid": t.thread.tid, "thread": t.thread.thread_name, "of": t.thread.pid}
    for uuid, t in tracks.items()
}
json.dump({"slices": slices, "open": left, "tracks": described}, sys.stdout)
