/* Tests the promises of the interface: layouts, errors, handles, handlers. C11 and C++17. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trapline.h>

#ifdef __cplusplus
#define ASSERT static_assert
#define NOINLINE extern "C" __attribute__((noinline, visibility("default")))
#else
#define ASSERT _Static_assert
#define NOINLINE __attribute__((noinline, visibility("default")))
#endif

/* Programs were compiled with these offsets, so they must stay. */
#define AT(type, field, at) ASSERT(offsetof(struct type, field) == at, #type "." #field)
AT(trapline_regs, rax, 0);
AT(trapline_regs, rdi, 56);
AT(trapline_regs, r15, 120);
AT(trapline_regs, rip, 128);
AT(trapline_regs, rflags, 136);
AT(trapline_hit, regs, 0);
AT(trapline_hit, site, 8);
AT(trapline_hit, cookie, 16);
AT(trapline_probe, file, 8);
AT(trapline_probe, function, 16);
AT(trapline_probe, offset, 24);
AT(trapline_probe, entry, 32);
AT(trapline_probe, returns, 40);
AT(trapline_probe, filter, 48);
AT(trapline_probe, data, 56);
AT(trapline_probe, flags, 64);
AT(trapline_probe, semaphore, 72);
AT(trapline_probe, returns_by, 80);
AT(trapline_tally, hits, 8);
AT(trapline_tally, by_trap, 48);
AT(trapline_options, pids, 8);
AT(trapline_options, probes, 24);
AT(trapline_options, at_least_ns, 40);
AT(trapline_options, flags, 48);
AT(trapline_count_row, hits, 40);
AT(trapline_count_row, pid, 64);
AT(trapline_times_row, calls, 40);
AT(trapline_times_row, max_ns, 88);
AT(trapline_times_row, pid, 96);
AT(trapline_refusal_row, reason, 24);
ASSERT(sizeof(trapline_error) == 4 && sizeof(trapline_verdict) == 4, "enums");
ASSERT(TRAPLINE_ERROR_NONE == 0 && TRAPLINE_ERROR_REFUSED == 23 && TRAPLINE_ERROR_OTHER == 127, "numbers");

#define CHECK(what) ((what) ? (void)0 : failed(__LINE__, #what))
#define IS(error, call) is(__LINE__, TRAPLINE_ERROR_##error, call)

static void failed(int line, const char *what)
{
	printf("abi.c:%d: %s; last error: %s\n", line, what, trapline_last_error());
	exit(1);
}

static void is(int line, int32_t expected, int32_t got)
{
	if (expected != got) {
		printf("expected %s, got %s; ", trapline_error_text(expected), trapline_error_text(got));
		failed(line, "an error");
	}
	if (got != TRAPLINE_ERROR_NONE && !*trapline_last_error())
		failed(line, "no words for it");
}

NOINLINE uint64_t add(uint64_t a, uint64_t b) { __asm__ volatile("" ::: "memory"); return a * 3 + b; }
NOINLINE uint64_t twice(uint64_t a, uint64_t b) { __asm__ volatile("" ::: "memory"); return a * 2 + (b & 1); }
static uint64_t (*volatile call_add)(uint64_t, uint64_t) = add;
static uint64_t (*volatile call_twice)(uint64_t, uint64_t) = twice;

/* (a, b): ends by a jump to `add`, which returns to its caller. */
__asm__(".text\n.globl ends_in_a_jump\n.type ends_in_a_jump,@function\nends_in_a_jump:\n"
	"push %rbp\npop %rbp\nnop\nnop\nnop\njmp add\n.size ends_in_a_jump,.-ends_in_a_jump\n");
#ifdef __cplusplus
extern "C"
#endif
uint64_t ends_in_a_jump(uint64_t a, uint64_t b);
static uint64_t (*volatile call_jump)(uint64_t, uint64_t) = ends_in_a_jump;

struct seen {
	uint64_t entries, returns, sum, cookies;
	trapline_registration *itself;
	trapline_error refused;
};

static trapline_verdict on_entry(void *data, trapline_hit *hit)
{
	struct seen *seen = (struct seen *)data;
	seen->entries++;
	seen->sum += hit->regs->rdi;
	hit->cookie = hit->regs->rdi + 1000;
	return hit->regs->rdi % 2 ? TRAPLINE_VERDICT_IGNORE_RETURN : TRAPLINE_VERDICT_CONTINUE;
}

static trapline_verdict on_return(void *data, trapline_hit *hit)
{
	struct seen *seen = (struct seen *)data;
	seen->returns++;
	seen->cookies += hit->cookie;
	hit->regs->rax += 7;
	return TRAPLINE_VERDICT_CONTINUE;
}

static bool big(void *data, const trapline_hit *hit)
{
	(void)data;
	return hit->regs->rdi > 90;
}

static trapline_verdict gone(void *data, trapline_hit *hit)
{
	(void)data;
	hit->regs->rip = (uint64_t)(uintptr_t)call_twice;
	return TRAPLINE_VERDICT_CONTINUE;
}

static trapline_verdict ends_itself(void *data, trapline_hit *hit)
{
	struct seen *seen = (struct seen *)data;
	(void)hit;
	seen->refused = trapline_unregister(seen->itself);
	return TRAPLINE_VERDICT_CONTINUE;
}

static trapline_probe on(const char *program, const char *function, void *data)
{
	trapline_probe probe;
	memset(&probe, 0, sizeof probe);
	probe.size = sizeof probe;
	probe.file = program;
	probe.function = function;
	probe.entry = on_entry;
	probe.data = data;
	return probe;
}

static uint64_t hits(const trapline_registration *registration)
{
	trapline_tally tally;
	memset(&tally, 0xee, sizeof tally);
	tally.size = sizeof tally;
	IS(NONE, trapline_tally_of(registration, &tally));
	CHECK(tally.by_jump + tally.by_trap == 1 && tally.nested == 0);
	return tally.hits;
}

static void errors(const char *program)
{
	struct seen seen;
	trapline_registration *none = (trapline_registration *)&seen;
	trapline_probe probe = on(program, "add", &seen);
	struct { trapline_probe probe; uint64_t later[4]; } longer;

	memset(&seen, 0, sizeof seen);
	IS(NULL_POINTER, trapline_register(NULL, &none));
	IS(NULL_POINTER, trapline_register(&probe, NULL));
	IS(EMPTY, trapline_register_all(&probe, 0, &none));
	CHECK(trapline_last_errno() == 22);
	probe.size = 8;
	IS(STRUCT_SIZE, trapline_register(&probe, &none));
	probe.size = 5000;
	IS(STRUCT_SIZE, trapline_register(&probe, &none));
	/* A program compiled with a later header: fields that it leaves zero are accepted, fields that it uses are not. */
	memset(&longer, 0, sizeof longer);
	longer.probe = on(program, "add", &seen);
	longer.probe.size = sizeof longer;
	longer.later[3] = 1;
	IS(UNKNOWN_FIELD, trapline_register(&longer.probe, &none));
	CHECK(none == (trapline_registration *)&seen);
	longer.later[3] = 0;
	IS(NONE, trapline_register(&longer.probe, &none));
	IS(NONE, trapline_unregister(none));
	probe = on(program, "add", &seen);
	probe.flags = 1u << 31;
	IS(UNKNOWN_FLAG, trapline_register(&probe, &none));
	probe = on("/nowhere", NULL, &seen);
	IS(UNREADABLE, trapline_register(&probe, &none));
	CHECK(trapline_last_errno() == 2 && strstr(trapline_last_error(), "/nowhere"));
	probe = on(program, "add", &seen);
	probe.offset = 1;
	IS(INSIDE_INSTRUCTION, trapline_register(&probe, &none));
	probe = on(program, "add", &seen);
	probe.semaphore = 1;
	IS(BAD_SEMAPHORE, trapline_register(&probe, &none));
	probe = on(program, "no_such_function", &seen);
	IS(FILE, trapline_register(&probe, &none));
	probe = on("\xff", NULL, &seen);
	IS(NOT_UTF8, trapline_register(&probe, &none));
	probe = on(program, "add", &seen);
	probe.offset = 1ull << 40;
	IS(BEHIND_END, trapline_register(&probe, &none));
	probe = on(program, NULL, &seen);
	IS(NOT_CODE, trapline_register(&probe, &none));
	probe = on(program, "add", &seen);
	probe.entry = NULL;
	IS(NO_HANDLER, trapline_register(&probe, &none));
	IS(NONE, trapline_unregister(NULL));
	IS(NULL_POINTER, trapline_tally_of(NULL, NULL));
	/* None of these was registered. */
	CHECK(call_add(1, 1) == 4 && seen.entries == 0);
}

static void handlers(const char *program)
{
	struct seen seen;
	trapline_registration *one;
	trapline_probe probe = on(program, "add", &seen);

	memset(&seen, 0, sizeof seen);
	probe.returns = on_return;
	IS(NONE, trapline_register(&probe, &one));
	for (uint64_t n = 0; n < 100; n++)
		CHECK(call_add(n, 1) == n * 3 + 1 + (n % 2 ? 0 : 7));
	CHECK(seen.entries == 100 && seen.returns == 50 && seen.sum == 4950 && seen.cookies == 2450 + 50 * 1000);
	CHECK(hits(one) == 100);
	IS(NONE, trapline_unregister(one));
	CHECK(call_add(2, 1) == 7 && seen.entries == 100);

	/* By its return address; and as in the first version, which had exits only. */
	probe.returns_by = TRAPLINE_RETURNS_STACK + 1;
	IS(UNKNOWN_FLAG, trapline_register(&probe, &one));
	for (int by_stack = 0; by_stack < 2; by_stack++) {
		memset(&seen, 0, sizeof seen);
		probe.returns_by = TRAPLINE_RETURNS_STACK;
		probe.size = by_stack ? sizeof probe : offsetof(struct trapline_probe, returns_by);
		probe.function = by_stack ? "ends_in_a_jump" : "add";
		IS(NONE, trapline_register(&probe, &one));
		for (uint64_t n = 0; n < 100; n++)
			CHECK((by_stack ? call_jump : call_add)(n, 1) == n * 3 + 1 + (n % 2 ? 0 : 7));
		CHECK(seen.entries == 100 && seen.returns == 50);
		IS(NONE, trapline_unregister(one));
	}
	probe.function = "ends_in_a_jump";
	probe.returns_by = TRAPLINE_RETURNS_EXITS;
	IS(REFUSED, trapline_register(&probe, &one));

	for (uint32_t flags = 0; flags <= TRAPLINE_PROBE_BY_TRAP; flags += TRAPLINE_PROBE_BY_TRAP) {
		memset(&seen, 0, sizeof seen);
		probe = on(program, "add", &seen);
		probe.filter = big;
		probe.flags = flags;
		IS(NONE, trapline_register(&probe, &one));
		/* They are the site's, not the consumer's. */
		uint64_t before = hits(one);
		for (uint64_t n = 0; n < 100; n++)
			CHECK(call_add(n, 1) == n * 3 + 1);
		CHECK(seen.entries == 9 && hits(one) == before + 100);
		IS(NONE, trapline_unregister(one));

		probe = on(program, "add", &seen);
		probe.entry = gone;
		probe.flags = flags | TRAPLINE_PROBE_MOVES_IP;
		IS(NONE, trapline_register(&probe, &one));
		CHECK(call_add(20, 1) == 41);
		IS(NONE, trapline_unregister(one));

		probe = on(program, "add", &seen);
		probe.entry = ends_itself;
		probe.flags = flags;
		IS(NONE, trapline_register(&probe, &seen.itself));
		call_add(1, 1);
		CHECK(seen.refused == TRAPLINE_ERROR_INSIDE_HANDLER);
		IS(NONE, trapline_unregister(seen.itself));
	}
}

static void batches(const char *program)
{
	struct seen seen[2];
	trapline_registration *both[2];
	trapline_probe probes[2] = { on(program, "add", &seen[0]), on(program, "twice", &seen[1]) };

	memset(seen, 0, sizeof seen);
	probes[1].offset = 1ull << 40;
	IS(BEHIND_END, trapline_register_all(probes, 2, both));
	probes[1].offset = 0;
	probes[1].size += 8;
	IS(STRUCT_SIZE, trapline_register_all(probes, 2, both));
	CHECK(call_add(1, 1) == 4 && seen[0].entries == 0);
	probes[1].size -= 8;
	IS(NONE, trapline_register_all(probes, 2, both));
	CHECK(call_add(1, 1) == 4 && call_twice(2, 0) == 4 && call_twice(3, 0) == 6);
	CHECK(seen[0].entries == 1 && seen[1].entries == 2);
	size_t sites = 77;
	IS(NONE, trapline_rescan(&sites));
	CHECK(sites == 0);
	IS(NONE, trapline_unregister_all(both, 2));
	CHECK(call_add(1, 1) == 4 && call_twice(2, 0) == 4 && seen[0].entries == 1 && seen[1].entries == 2);
}

static void sessions(void)
{
	const uint32_t unused = 0x7ffffff0;
	const char *probe = "libc:malloc", *bad = "uprobe:";
	trapline_options options;
	trapline_session *session = NULL;
	trapline_report *report = NULL;

	memset(&options, 0, sizeof options);
	options.size = sizeof options;
	options.pids = &unused;
	options.pids_len = 1;
	options.probes = &probe;
	options.probes_len = 1;
	IS(TARGET, trapline_count(&options, &session));
	options.flags = 1u << 31;
	IS(UNKNOWN_FLAG, trapline_count(&options, &session));
	options.flags = 0;
	options.probes = &bad;
	IS(BAD_PROBE, trapline_latency(&options, &session));
	options.probes = NULL;
	IS(NULL_POINTER, trapline_latency(&options, &session));
	CHECK(session == NULL);
	IS(NULL_POINTER, trapline_detach(NULL, &report));
	IS(NULL_POINTER, trapline_poll(NULL, NULL));
	IS(NULL_POINTER, trapline_read(NULL, &report));
	CHECK(report == NULL && trapline_report_counts(NULL) == 0 && trapline_report_notice(NULL, 0) == NULL);
	trapline_report_free(NULL);
}

int main(int argc, char **argv)
{
	(void)argc;
	errors(argv[0]);
	handlers(argv[0]);
	batches(argv[0]);
	sessions();
	puts("done");
	return 0;
}
