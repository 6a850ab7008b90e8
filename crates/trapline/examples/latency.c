/* Times calls of functions in a running program, until Enter. What latency.rs does, in C:
 *
 *     cc latency.c -ltrapline -o latency && ./latency PID 'libc:malloc'
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <trapline.h>

static void check(trapline_error error)
{
	if (error == TRAPLINE_ERROR_NONE)
		return;
	fprintf(stderr, "%s: %s\n", trapline_error_text(error), trapline_last_error());
	exit(1);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: latency PID PROBE...\n");
		return 2;
	}
	uint32_t pid = (uint32_t)strtoul(argv[1], NULL, 10);
	struct trapline_options options = {
		.size = sizeof options,
		.pids = &pid,
		.pids_len = 1,
		.probes = (const char *const *)argv + 2,
		.probes_len = (size_t)argc - 2,
	};
	struct trapline_session *session;
	check(trapline_latency(&options, &session));
	puts("timing");
	fflush(stdout);
	getchar();
	struct trapline_report *report;
	check(trapline_detach(session, &report));
	for (size_t n = 0; n < trapline_report_times(report); n++) {
		struct trapline_times_row row = { .size = sizeof row };
		uint64_t p50;
		check(trapline_report_time(report, n, &row));
		check(trapline_report_percentile(report, n, 0.5, &p50));
		printf("%10" PRIu64 " %s: %" PRIu64 " to %" PRIu64 " ns, p50 %" PRIu64 "\n",
		       row.calls, row.label, row.min_ns, row.max_ns, p50);
	}
	trapline_report_free(report);
	return 0;
}
