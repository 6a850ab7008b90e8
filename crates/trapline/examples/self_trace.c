/* A program that watches its own calls of malloc: which sizes are requested. What self_trace.rs does, in C:
 *
 *     cc self_trace.c -ltrapline -o self_trace && ./self_trace
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <trapline.h>

static _Atomic uint64_t bytes, largest;

/* Runs in the thread that hits, as a signal handler does, so it works with atomics. */
static trapline_verdict on_malloc(void *data, struct trapline_hit *hit)
{
	uint64_t size = hit->regs->rdi, most = atomic_load(&largest);

	(void)data;
	atomic_fetch_add(&bytes, size);
	while (size > most && !atomic_compare_exchange_weak(&largest, &most, size))
		;
	return TRAPLINE_VERDICT_CONTINUE;
}

static void check(trapline_error error)
{
	if (error == TRAPLINE_ERROR_NONE)
		return;
	fprintf(stderr, "%s: %s\n", trapline_error_text(error), trapline_last_error());
	exit(1);
}

int main(void)
{
	struct trapline_probe probe = {
		.size = sizeof probe,
		.file = "libc",
		.function = "malloc",
		.entry = on_malloc,
	};
	struct trapline_registration *registration;
	check(trapline_register(&probe, &registration));

	static void *volatile words[1000];
	for (size_t n = 0; n < 1000; n++)
		words[n] = malloc(n);

	struct trapline_tally tally = { .size = sizeof tally };
	check(trapline_tally_of(registration, &tally));
	printf("%" PRIu64 " calls, %" PRIu64 " bytes, %" PRIu64 " at most\n", tally.hits, bytes, largest);
	for (size_t n = 0; n < 1000; n++)
		free(words[n]);
	check(trapline_unregister(registration)); /* no handler of it runs any more */
	return 0;
}
