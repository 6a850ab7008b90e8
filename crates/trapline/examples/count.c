/* Counts calls of functions in a running program, until Enter. What count.rs does, in C:
 *
 *     cc count.c -ltrapline -o count && ./count PID 'libc:malloc' 'uprobe:/usr/bin/x:main_*'
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
		fprintf(stderr, "usage: count PID PROBE...\n");
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
	check(trapline_count(&options, &session));
	puts("counting");
	fflush(stdout);
	/* A program that loads libraries meanwhile should call trapline_poll() a few times a second. */
	getchar();
	struct trapline_report *report;
	check(trapline_detach(session, &report));
	for (size_t n = 0; n < trapline_report_counts(report); n++) {
		struct trapline_count_row row = { .size = sizeof row };
		check(trapline_report_count(report, n, &row));
		printf("%10" PRIu64 " %s\n", row.hits, row.label);
	}
	trapline_report_free(report);
	return 0;
}
